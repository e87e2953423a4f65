//! What a Kyma has besides its modules, and what modules have besides their raw manifest.

use tidewatch_api::Layer;

use super::*;

#[test]
fn a_kyma_without_its_pull_secret_is_not_ready() {
    let now = Timestamp::from_second(100).unwrap();
    let mut kyma = kyma();
    let ready = || run(&wanted(&[]), &[]).status;
    let condition = |status: &KymaStatus| {
        let mut all = status.conditions.iter().filter(|c| c.type_ == conditions::IMAGE_PULL_SECRET_SYNC);
        let one = all.next().map(|c| (c.status.clone(), c.message.clone(), c.last_transition_time.0));
        assert!(all.next().is_none());
        one
    };
    assert_eq!(condition(&ready()), None, "nothing is said without one");
    assert!(!is_written(&ready(), conditions::IMAGE_PULL_SECRET_SYNC));

    let mut status = ready();
    tell_pull_secret(&mut status, &kyma, &Ok(()), now);
    let (holds, text, since) = condition(&status).unwrap();
    assert_eq!((status.state, holds.as_str(), since), (State::Ready, "True", now));
    assert_eq!(text, "skr image pull secret is synchronized");
    assert!(is_written(&status, conditions::IMAGE_PULL_SECRET_SYNC));

    kyma.status = Some(status.clone());
    let mut again = ready();
    tell_pull_secret(&mut again, &kyma, &Ok(()), Timestamp::from_second(200).unwrap());
    assert_eq!(condition(&again), condition(&status), "its time stays");
    // What is not known anew stays as it was.
    let failed = failed_status(&kyma, State::Error, "gone".into(), now);
    assert_eq!(condition(&failed), condition(&status));

    let mut status = ready();
    tell_pull_secret(&mut status, &kyma, &Err("it is not there".into()), now);
    let (holds, text, _) = condition(&status).unwrap();
    assert_eq!((status.state, holds.as_str()), (State::Processing, "False"));
    assert!(text.contains("out of sync") && text.ends_with("it is not there"), "{text}");
    assert_eq!(status.last_operation.unwrap().operation, text);
    let mut status = KymaStatus { state: State::Error, ..ready() };
    tell_pull_secret(&mut status, &kyma, &Err("it is not there".into()), now);
    assert_eq!(status.state, State::Error, "what is worse stays");
}

#[test]
fn a_manifest_knows_where_its_further_sources_are() {
    let layer = |name: &str| Layer { name: name.into(), ref_: "sha256:cc".into(), type_: "oci-ref".into() };
    let further = || BTreeMap::from([("crds".to_owned(), Some(layer("crds")))]);
    let sources = sources_read(|source| Ok(Source { further: further(), ..source }));
    let plan_with = |named: &[&str]| {
        let kyma = kyma();
        let wanted = wanted(&["lighthouse"]);
        let mut choices = choose(&wanted, &catalog(), &[]);
        let chosen = choices[0].outcome.as_mut().unwrap();
        let template = Arc::make_mut(&mut chosen.template);
        template.spec.sources = named.iter().map(|name| (*name).to_owned()).collect();
        let facts = Facts::default();
        let now = Timestamp::UNIX_EPOCH;
        let (choices, manifests) = (&choices, &[]);
        plan(&Input { kyma: &kyma, wanted: &wanted, choices, sources: &sources, manifests, facts, now })
    };
    let planned = plan_with(&["crds"]);
    assert_eq!(planned.apply[0].terms().unwrap().layers, [layer("crds")]);
    assert!(plan_with(&[]).apply[0].terms().unwrap().layers.is_empty(), "what is not named does not count");
    let missing = plan_with(&["crds", "tables"]);
    assert!(missing.apply.is_empty() && missing.status.modules[0].state == State::Error);
    assert!(missing.status.modules[0].message.contains("'tables'"), "{}", missing.status.modules[0].message);
}
