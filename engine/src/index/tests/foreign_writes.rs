//! Other writers' changes and removals on objects in KCP.

use super::*;

#[test]
fn a_status_overwritten_by_another_writer_is_queued_once() {
    let mut state = KcpState::default();
    let of_another = |version, time| {
        let (mut kyma, mut manifest) =
            (kyma("a", "r1", version, 1), manifest("m", version, "Ready", Some("d")));
        written_by(&mut kyma.metadata, &[], Some(time));
        written_by(&mut manifest.metadata, &[(field_managers::APPLIER, 9)], Some(time));
        (kyma, manifest)
    };
    let (at_noon, later) = ("2026-01-01T12:00:00Z", "2026-01-01T12:00:07Z");
    let (left, too) = of_another(1, at_noon);
    assert_eq!(keys(state.apply_kyma(left)), ["Kyma/a"], "as each at a start");
    assert_eq!(
        keys(state.apply_manifest(too)),
        ["Kyma/a", "AgentConfig/a"],
        "what somebody has left is no news"
    );
    let mut see = |version, time| {
        let (kyma, manifest) = of_another(version, time);
        let mut wanted = state.apply_kyma(kyma);
        wanted.extend(state.apply_manifest(manifest));
        assert!(wanted.iter().all(|(_, change)| *change == Change::StatusOverwritten));
        keys(wanted)
    };
    assert!(see(2, at_noon).is_empty(), "it is still the same");
    assert_eq!(see(3, later), ["Kyma/a", "Manifest/m"]);
    assert!(see(4, later).is_empty());
    // Restored, and overwritten again.
    state.apply_kyma(kyma("a", "r1", 5, 1));
    assert_eq!(keys(state.apply_kyma(of_another(6, later).0)), ["Kyma/a"]);
}

#[test]
fn removed_status_fields_queue_their_writers_key() {
    use tidewatch_api::names::field_managers::{APPLIER, CATALOG_STATUS, EVENT_PATH, KCP};

    let mut state = KcpState::default();
    let mut wanted = |version, counts: [u64; 3]| {
        let mut kyma = kyma("a", "r1", version, 1);
        let ours: Vec<_> = [KCP, CATALOG_STATUS, EVENT_PATH].into_iter().zip(counts).collect();
        written_by(&mut kyma.metadata, &ours, None);
        keys(state.apply_kyma(kyma))
    };
    assert_eq!(wanted(1, [20, 6, 6]), ["Kyma/a"], "as each at a start");
    assert!(wanted(2, [20, 6, 6]).is_empty());
    assert_eq!(wanted(3, [19, 6, 6]), ["Kyma/a"]);
    assert_eq!(wanted(4, [19, 0, 6]), ["Catalog/a"]);
    assert_eq!(wanted(5, [19, 0, 0]), ["EventPath/a"]);
    assert!(wanted(6, [20, 6, 6]).is_empty(), "it is right again");

    let of = |version, count, state: &str| {
        let mut manifest = manifest("m", version, state, Some("d"));
        written_by(&mut manifest.metadata, &[(APPLIER, count)], None);
        manifest
    };
    state.apply_manifest(of(1, 9, "Ready"));
    assert!(state.apply_manifest(of(2, 9, "Ready")).is_empty());
    let key = manifest_key("a", "m");
    let mut forged = of(3, 8, "Error");
    written_by(&mut forged.metadata, &[(APPLIER, 8)], Some("2026-01-01T12:00:00Z"));
    let robbed = state.apply_manifest(forged);
    assert_eq!(
        robbed,
        [(key.clone(), Change::StatusOverwritten), (kyma_key("a"), Change::ManifestStatusOverwritten)],
        "not told at once"
    );
    assert_eq!(state.take_suspicion(&key), Some(Suspected { by: Some("kubectl-edit".to_owned()) }));
    assert_eq!(state.take_suspicion(&key), None, "it was looked at");
    state.apply_manifest(of(4, 9, "Ready"));
    state.wrote("Manifest", "m", Some("5".into()));
    assert!(state.apply_manifest(of(5, 8, "Ready")).is_empty(), "we have written it");
    // The watch may precede the response. This write removes fields within the same second.
    state.apply_manifest(of(6, 9, "Processing"));
    let own = state.apply_manifest(of(7, 8, "Ready"));
    assert_eq!(
        own,
        [(key.clone(), Change::StatusOverwritten), (kyma_key("a"), Change::ManifestStatus)],
        "its Kyma is told at once"
    );
    state.wrote("Manifest", "m", Some("7".into()));
    assert_eq!(state.take_suspicion(&key), None, "it was our own");
}

#[test]
fn an_overwritten_inventory_is_remembered() {
    let of = |version, deployment, own: bool| {
        let mut manifest = manifest("m", version, "Ready", deployment);
        manifest.metadata.uid = Some("u".into());
        manifest.metadata.finalizers = Some(vec![finalizers::MANIFEST.into()]);
        let ours = [(field_managers::APPLIER, 9)];
        written_by(&mut manifest.metadata, if own { &ours } else { &[] }, None);
        manifest
    };
    let has = |state: &KcpState| {
        let seen = state.manifests.of("a").last().unwrap();
        state.manifests.inventory(seen).into_iter().map(|o| o.name).collect::<Vec<_>>()
    };
    let mut state = KcpState::default();
    state.apply_manifest(of(1, Some("d"), true));
    let mut gone = of(2, None, false);
    gone.status = None;
    state.apply_manifest(gone);
    assert_eq!(has(&state), ["d"], "all of the status was taken away");
    let mut loose = of(2, None, false);
    (loose.status, loose.metadata.finalizers) = (None, None);
    state.apply_manifest(loose);
    assert_eq!(has(&state), ["d"], "and what holds it");
    state.apply_manifest(of(3, Some("e"), false));
    assert_eq!(has(&state), ["e", "d"]);
    let deployment = ObjectRef::of(
        &json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "s"}}),
    );
    assert_eq!(state.owners.of("a", &deployment.unwrap()), ["m"], "events about it find it");
    state.apply_manifest(of(4, Some("e"), true));
    assert_eq!(has(&state), ["e"], "as we have it");
    let mut another = of(5, None, false);
    another.metadata.uid = Some("v".into());
    state.apply_manifest(another);
    assert!(has(&state).is_empty(), "another Manifest");
    state.apply_manifest(of(6, Some("d"), true));
    let mut anew = of(7, None, false);
    anew.metadata.uid = Some("w".into());
    assert!(
        state.manifests.inventory(&anew).is_empty(),
        "another Manifest, of which the watch has not told yet"
    );
    // The removal may be unobserved.
    let found = KcpState::default().apply_manifest(of(1, Some("d"), false));
    assert!(keys(found).contains(&"Manifest/m".to_owned()), "what is installed has an inventory of ours");
}

#[test]
fn a_removed_finalizer_queues_its_object() {
    let held = |version, by: &[&str]| {
        let mut manifest = manifest("m", version, "Ready", Some("d"));
        manifest.metadata.finalizers = Some(by.iter().map(|&f| f.to_owned()).collect());
        manifest
    };
    let (own, others) = (finalizers::MANIFEST, "backup.example.dev/wait");
    let with_cr = |version, by: &[&str]| {
        let mut manifest = held(version, by);
        manifest.spec.resource = serde_json::from_value(
            json!({"apiVersion": "x.dev/v1", "kind": "Beacon", "metadata": {"name": "b", "namespace": "n"}}),
        )
        .unwrap();
        let said = json!({"type": "ModuleCR", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        manifest.status.as_mut().unwrap().conditions.push(serde_json::from_value(said).unwrap());
        manifest
    };
    let mut state = KcpState::default();
    assert_eq!(
        keys(state.apply_manifest(with_cr(1, &[own, finalizers::DEFAULT_CR]))),
        ["Kyma/a", "AgentConfig/a"]
    );
    assert_eq!(keys(state.apply_manifest(with_cr(2, &[own]))), ["Manifest/m"]);
    state.wrote("Manifest", "m", Some("4".into()));
    state.apply_manifest(with_cr(3, &[own, finalizers::DEFAULT_CR]));
    assert_eq!(
        keys(state.apply_manifest(with_cr(4, &[own]))),
        ["Manifest/m"],
        "seen with a later write of ours"
    );
    let mut unsaid = with_cr(5, &[own, finalizers::DEFAULT_CR]);
    unsaid.status.as_mut().unwrap().conditions.retain(|condition| condition.type_ != "ModuleCR");
    let found = keys(KcpState::default().apply_manifest(unsaid));
    assert!(found.contains(&"Manifest/m".to_owned()), "its default CR is not told of");
    let mut given_up = with_cr(6, &[own, finalizers::DEFAULT_CR]);
    let mark = |manifest: &mut Manifest| {
        let unmanaged = names::annotations::IS_UNMANAGED.to_owned();
        manifest.annotations_mut().insert(unmanaged, "true".into());
    };
    mark(&mut given_up);
    state.apply_manifest(given_up);
    let mut released = with_cr(7, &[]);
    mark(&mut released);
    assert!(state.apply_manifest(released).is_empty(), "an unmanaged Manifest needs no finalizer");
    let mut state = KcpState::default();
    assert_eq!(keys(state.apply_manifest(held(1, &[own, others]))), ["Kyma/a", "AgentConfig/a"]);
    assert!(state.apply_manifest(held(2, &[own])).is_empty(), "another's is its own");
    assert_eq!(keys(state.apply_manifest(held(3, &[]))), ["Manifest/m"]);
    assert!(state.apply_manifest(held(4, &[own])).is_empty(), "it is held again");
    let found = keys(KcpState::default().apply_manifest(held(1, &[others])));
    assert!(found.contains(&"Manifest/m".to_owned()), "nobody may have been there to see it");
    let mut leaving = held(5, &[]);
    leaving.metadata.deletion_timestamp =
        Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
    state.apply_manifest(leaving.clone());
    leaving.metadata.resource_version = Some("6".into());
    assert!(state.apply_manifest(leaving).is_empty(), "one that goes is let go");

    let held = |version, by: &[&str]| {
        let mut kyma = kyma("a", "r1", version, 1);
        kyma.metadata.finalizers = Some(by.iter().map(|&f| f.to_owned()).collect());
        kyma
    };
    state.apply_kyma(held(1, &[finalizers::KYMA]));
    assert_eq!(keys(state.apply_kyma(held(2, &[]))), ["Kyma/a"]);
    assert!(state.apply_kyma(held(3, &[finalizers::KYMA])).is_empty());
}

#[test]
fn settled_manifests_with_missing_status_are_queued_at_start() {
    let looked = |change: &dyn Fn(&mut tidewatch_api::ManifestStatus)| {
        let mut manifest = manifest("m", 1, "Ready", Some("d"));
        change(manifest.status.as_mut().unwrap());
        keys(KcpState::default().apply_manifest(manifest)).contains(&"Manifest/m".to_owned())
    };
    assert!(!looked(&|_| ()));
    assert!(looked(&|status| status.last_operation = None));
    assert!(looked(&|status| status.conditions.retain(|c| c.type_ != "Installation")));
}
