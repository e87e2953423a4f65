//! The objects read after the wanted state changed.

use tidewatch_api::watcher::WatchedField;
use tidewatch_planner::agent::{AgentConfig, AgentWatch, ENGINE_ROUTE};

use super::*;
use crate::index::{PathReport, owners::Speaker};

/// The agent watches all of the module's kinds, on a proven path.
fn watch_all(engine: &Engine) {
    let watch = |(group, resource): (&str, &str)| {
        [WatchedField::Spec, WatchedField::Status].map(|field| AgentWatch {
            name: format!("{resource}.{field:?}"),
            route: ENGINE_ROUTE.to_owned(),
            group: group.to_owned(),
            version: "*".to_owned(),
            resource: resource.to_owned(),
            field,
            labels: BTreeMap::new(),
        })
    };
    let kinds = [
        ("apps", "deployments"),
        ("x.dev", "beacons"),
        ("apiextensions.k8s.io", "customresourcedefinitions"),
    ];
    let config = AgentConfig { generation: "g".into(), watches: kinds.map(watch).concat() };
    let mut state = engine.dispatcher.kcp.index_mut();
    state.apply_kyma(serde_json::from_value(json!({"metadata": {"name": "harbour"}, "spec": {}})).unwrap());
    state.configure_agent("harbour", config);
    state
        .kymas
        .set_event_path("harbour", PathReport { proven: true, reason: "Proven", message: String::new() });
}

/// The new version's change.
type Edit = fn(&mut Bundle, &mut Manifest);

#[tokio::test]
async fn an_upgrade_reads_changed_and_unwatched_objects() {
    let key = manifest_key();
    let changed = [Trigger::Kcp { object: key.clone(), change: crate::trigger::Change::Changed }];
    let of = |method: &str, path: &str| format!("{method} {path}");
    let [crd, deployment, object, cr] = [CRD, DEPLOYMENT, BEACON, DEFAULT_CR].map(|path| of("GET", path));
    let to_two = |bundle: &mut Bundle, _: &mut Manifest| bundle.main[0]["spec"]["replicas"] = 2.into();
    let ignores = |_: &mut Bundle, manifest: &mut Manifest| {
        let terms =
            json!({"ignoreFields": [{"group": "apps", "kind": "Deployment", "paths": ["/spec/paused"]}]});
        manifest.annotations_mut().insert(names::annotations::MODULE_TERMS.into(), terms.to_string());
    };
    let cases: [(Edit, bool, &[Trigger], Vec<String>); 6] = [
        (to_two, true, &[], vec![cr.clone(), deployment.clone(), of("PATCH", DEPLOYMENT)]),
        // Only the marks changed, such as the channel label.
        (|_, _| (), true, &[], vec![cr.clone()]),
        (
            to_two,
            true,
            &[event(&beacon("a"))],
            vec![object.clone(), cr.clone(), deployment.clone(), of("PATCH", DEPLOYMENT)],
        ),
        // A changed definition leaves its objects' state unknown.
        (
            |bundle, _| bundle.first[0]["spec"]["names"]["singular"] = "light".into(),
            true,
            &[],
            vec![crd.clone(), object.clone(), cr.clone(), of("PATCH", CRD)],
        ),
        // The module may have to set a formerly user-owned field.
        (ignores, true, &[], vec![crd.clone(), deployment.clone(), object.clone(), cr.clone()]),
        (to_two, false, &[], vec![crd, deployment, object, cr, of("PATCH", DEPLOYMENT)]),
    ];
    for (number, (edit, watched, events, wanted)) in cases.into_iter().enumerate() {
        let (engine, _) = engine();
        if watched {
            watch_all(&engine);
        }
        let (runtime, requests) = runtime(well());
        pass(&engine, &runtime, None, &[]).await;
        take_requests(&requests);
        let before = last_sync(&engine).unwrap();
        let (mut bundle, mut manifest) = (bundle(), manifest());
        manifest.metadata.generation = Some(2);
        edit(&mut bundle, &mut manifest);
        let inputs = Inputs { spec: 1, ..Inputs::default() };
        let heard_of = [&changed[..], events].concat();
        let scope = SyncScope::after(before.clone(), inputs, named(&key, &heard_of, heard_of.len()));
        let work = Work { inputs, scope, ..whole(&key) };
        install(&engine, work, &manifest, &runtime, bundle).await;
        let mut wanted = wanted;
        wanted.sort();
        let mut requests = take_requests(&requests);
        // Written objects have no status here, so definitions and pods are read again.
        requests.retain(|line| !line.ends_with(PODS));
        requests.dedup();
        assert_eq!(requests, wanted, "{number}");
        let after = last_sync(&engine).unwrap();
        assert_eq!(after.inputs, inputs);
        assert_eq!(after.desired == before.desired, number == 1, "{number}");
    }
}

#[tokio::test]
async fn every_upgrade_reads_objects_shared_with_another_manifest() {
    let (engine, _) = engine();
    watch_all(&engine);
    let (runtime, requests) = runtime(well());
    pass(&engine, &runtime, None, &[]).await;
    let alone = last_sync(&engine).unwrap();
    let deployment = bundle().main.remove(0);
    let id = ObjectRef::of(&deployment).unwrap();
    engine.dispatcher.kcp.index_mut().owners.claim(
        Speaker::Reconcile,
        "harbour",
        "a",
        std::slice::from_ref(&id),
    );
    // Reads all, or only the object that is marked for the other Manifest.
    for (before, causes) in [(None, vec![]), (Some(alone.clone()), vec![event(&deployment)])] {
        pass(&engine, &runtime, before, &causes).await;
        let shared = last_sync(&engine).unwrap();
        assert_eq!((alone.desired.len(), shared.desired.len()), (3, 2));
        assert!(shared.desired.iter().all(|(object, hash)| alone.desired.get(object) == Some(hash)));
        take_requests(&requests);
        let inputs = Inputs { spec: 1, ..Inputs::default() };
        let key = manifest_key();
        let changed = [Trigger::Kcp { object: key.clone(), change: crate::trigger::Change::Changed }];
        let scope = SyncScope::after(shared, inputs, named(&key, &changed, 1));
        install(&engine, Work { inputs, scope, ..whole(&key) }, &manifest(), &runtime, bundle()).await;
        let requests = take_requests(&requests);
        assert!(requests.contains(&format!("GET {DEPLOYMENT}")), "{requests:?}");
        assert!(!requests.iter().any(|line| line.ends_with(CRD) || line.ends_with(BEACON)), "{requests:?}");
    }
}
