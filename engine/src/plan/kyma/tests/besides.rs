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

#[test]
fn a_module_whose_turn_has_not_come_stays_and_nothing_is_said() {
    let installed = installed(State::Ready);
    let mut kyma = kyma();
    let mut wanted = wanted(&["lighthouse"]);
    let mut planned = |channel: &str, turn: Option<i64>| {
        wanted.modules[0].channel = Some(channel.into());
        let turns = turn.map(|at| ("lighthouse".to_owned(), Timestamp::from_second(at).unwrap()));
        let (choices, turns) = (choose(&wanted, &catalog(), &[]), turns.into_iter().collect());
        let plan = plan(&Input {
            kyma: &kyma,
            wanted: &wanted,
            choices: &choices,
            sources: &sources(),
            manifests: std::slice::from_ref(&installed),
            facts: Facts { turns: Some(&turns), ..Facts::default() },
            now: Timestamp::UNIX_EPOCH,
        });
        kyma.status = Some(plan.status.clone());
        plan
    };
    let before = planned("regular", None);
    assert_eq!((before.apply.len(), before.status.state), (0, State::Ready));
    let waits = planned("fast", Some(60));
    assert_eq!((waits.apply.len(), waits.look_at), (0, Some(Timestamp::from_second(60).unwrap())));
    let (told, now) = (&before.status.modules[0], &waits.status.modules[0]);
    assert_eq!((now.state, &now.message, &now.template), (told.state, &told.message, &told.template));
    assert_eq!(waits.status.state, State::Ready);
    assert_eq!(planned("fast", Some(0)).apply[0].spec.version, "1.1.0", "its turn has come");
}
