//! Pull Secret, further layers, rollout turns, refusals and policy.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tidewatch_api::Layer;

use super::*;
use crate::policy::{self, PolicyEffect, apply};

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
    report_pull_secret(&mut status, &kyma, &Ok(()), now);
    let (holds, text, since) = condition(&status).unwrap();
    assert_eq!((status.state, holds.as_str(), since), (State::Ready, "True", now));
    assert_eq!(text, "skr image pull secret is synchronized");
    assert!(is_written(&status, conditions::IMAGE_PULL_SECRET_SYNC));

    kyma.status = Some(status.clone());
    let mut again = ready();
    report_pull_secret(&mut again, &kyma, &Ok(()), Timestamp::from_second(200).unwrap());
    assert_eq!(condition(&again), condition(&status), "its time stays");
    // Unknown, so unchanged.
    let failed = failed_status(&kyma, &[], "gone".into(), now);
    assert_eq!(condition(&failed), condition(&status));

    let mut status = ready();
    report_pull_secret(&mut status, &kyma, &Err("it is not there".into()), now);
    let (holds, text, _) = condition(&status).unwrap();
    assert_eq!((status.state, holds.as_str()), (State::Processing, "False"));
    assert!(text.contains("out of sync") && text.ends_with("it is not there"), "{text}");
    assert_eq!(status.last_operation.unwrap().operation, text);
    let mut status = KymaStatus { state: State::Error, ..ready() };
    report_pull_secret(&mut status, &kyma, &Err("it is not there".into()), now);
    assert_eq!(status.state, State::Error, "what is worse stays");
}

#[test]
fn a_manifest_carries_its_further_layers() {
    let layer = |name: &str| Layer { name: name.into(), ref_: "sha256:cc".into(), type_: "oci-ref".into() };
    let further = || BTreeMap::from([("crds".to_owned(), Some(layer("crds")))]);
    let sources = sources_read(|source| Ok(Source { further: further(), ..source }));
    let plan_with = |named: &[&str]| {
        let kyma = kyma();
        let wanted = wanted(&["lighthouse"]);
        let mut listed_modules = choose(&wanted, &catalog(), &[]);
        let chosen = listed_modules[0].outcome.as_mut().unwrap();
        let template = Arc::make_mut(&mut chosen.template);
        template.spec.sources = named.iter().map(|name| (*name).to_owned()).collect();
        let facts = Facts::default();
        let now = Timestamp::UNIX_EPOCH;
        let (listed_modules, manifests) = (&listed_modules, &[]);
        plan(&Input {
            kyma: &kyma,
            wanted: &wanted,
            modules: listed_modules,
            sources: &sources,
            manifests,
            facts,
            now,
        })
    };
    let planned = plan_with(&["crds"]);
    assert_eq!(planned.apply[0].terms().unwrap().layers, [layer("crds")]);
    assert!(plan_with(&[]).apply[0].terms().unwrap().layers.is_empty(), "what is not named does not count");
    let missing = plan_with(&["crds", "tables"]);
    assert!(missing.apply.is_empty() && missing.status.modules[0].state == State::Error);
    assert!(missing.status.modules[0].message.contains("'tables'"), "{}", missing.status.modules[0].message);
}

fn released(version: &str) -> FakeCatalog {
    let mut catalog = catalog();
    let release = Arc::make_mut(catalog.releases.get_mut("lighthouse").unwrap());
    release.spec.channels.as_mut().unwrap()[0].version = version.into();
    catalog
}

fn at_turn(
    catalog: &FakeCatalog,
    channel: &str,
    manifest: &Manifest,
    before: &KymaStatus,
    turn: Option<i64>,
) -> Plan {
    let mut wanted = wanted(&["lighthouse"]);
    wanted.modules[0].channel = Some(channel.into());
    let kyma = Kyma { status: Some(before.clone()), ..kyma() };
    let turns = turn.map(|at| ("lighthouse".to_owned(), Timestamp::from_second(at).unwrap()));
    let (listed_modules, turns) = (choose(&wanted, catalog, &[]), turns.into_iter().collect());
    plan(&Input {
        kyma: &kyma,
        wanted: &wanted,
        modules: &listed_modules,
        sources: &sources(),
        manifests: std::slice::from_ref(manifest),
        facts: Facts { turns: Some(&turns), ..Facts::default() },
        now: Timestamp::UNIX_EPOCH,
    })
}

#[test]
fn a_module_keeps_its_version_until_its_rollout_turn() {
    let installed = installed(State::Ready);
    let before = at_turn(&catalog(), "regular", &installed, &KymaStatus::default(), None);
    assert_eq!((before.apply.len(), before.status.state), (0, State::Ready));
    let newer = released("1.1.0");
    let waits = at_turn(&newer, "regular", &installed, &before.status, Some(60));
    assert_eq!((waits.apply.len(), waits.recheck_at), (0, Some(Timestamp::from_second(60).unwrap())));
    let (reported, now) = (&before.status.modules[0], &waits.status.modules[0]);
    assert_eq!(
        (now.state, &now.message, &now.template),
        (reported.state, &reported.message, &reported.template)
    );
    assert_eq!(waits.status.state, State::Ready);
    let due = at_turn(&newer, "regular", &installed, &waits.status, Some(0));
    assert_eq!(due.apply[0].spec.version, "1.1.0", "its turn has come");
}

#[test]
fn a_rollout_turn_delays_neither_refusals_nor_user_edits() {
    let mut newer = installed(State::Ready);
    newer.spec.version = "1.2.0".into();
    let refused = at_turn(&released("1.1.0"), "regular", &newer, &KymaStatus::default(), Some(60));
    let module = &refused.status.modules[0];
    assert_eq!(module.state, State::Warning);
    assert!(module.message.contains("1.1.0 is lower than the installed 1.2.0"), "{}", module.message);
    let edited = at_turn(&catalog(), "fast", &installed(State::Ready), &KymaStatus::default(), Some(60));
    assert_eq!(edited.apply[0].spec.version, "1.1.0", "the channel is another one than the rollout's");
}

#[test]
fn policy_ignore_applies_even_while_the_version_is_kept() {
    let newer = {
        let mut manifest = installed(State::Ready);
        manifest.spec.version = "1.2.0".into();
        manifest
    };
    assert!(newer.spec.resource.is_some());
    for channel in ["regular", "absent", "broken"] {
        let mut wanted = wanted(&["lighthouse"]);
        wanted.modules[0].channel = Some(channel.into());
        assert_eq!(
            run(&wanted, std::slice::from_ref(&newer)).apply,
            [],
            "{channel}: it is refused, or not there"
        );
        wanted.modules[0].custom_resource_policy = CustomResourcePolicy::Ignore;
        let plan = run(&wanted, std::slice::from_ref(&newer));
        let kept = &plan.apply[0];
        assert_eq!(
            (kept.spec.version.as_str(), &kept.spec.resource),
            ("1.2.0", &newer.spec.resource),
            "{channel}"
        );
        assert_eq!(kept.spec.custom_resource_policy, CustomResourcePolicy::Ignore);
        assert_eq!(default_cr(kept), None, "{channel}");
        let kept_manifest = crate::blockers::declared(kept).unwrap();
        assert!(
            kept_manifest.iter().any(|kind| kind.kind == "Beacon"),
            "it holds the module back: {kept_manifest:?}"
        );
        assert!(
            plan.status.modules[0].state != State::Ready || channel == "regular",
            "{:?}",
            plan.status.modules[0]
        );
        let mut done = kept.clone();
        done.status.clone_from(&newer.status);
        assert_eq!(run(&wanted, &[done]).apply, [], "{channel}: once");
    }
}

#[test]
fn a_deleting_module_is_upgraded_but_never_downgraded() {
    let mut deleting = installed(State::Ready);
    deleting.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    let mut wanted = wanted(&["lighthouse"]);
    wanted.modules[0].channel = Some("fast".into());
    assert_eq!(run(&wanted, std::slice::from_ref(&deleting)).apply[0].spec.version, "1.1.0");
    deleting.spec.version = "1.2.0".into();
    let plan = run(&wanted, std::slice::from_ref(&deleting));
    assert_eq!((plan.apply.len(), plan.status.modules[0].message.as_str()), (0, PREVIOUS_INSTALLATION));
    let progress =
        crate::manifest_status::Progress::Deleting("waiting for module crs deletion: Beacon a/b (1)".into());
    deleting.status =
        Some(crate::manifest_status::manifest_status(&deleting, &progress, &[], None, Timestamp::UNIX_EPOCH));
    let state_and_message = run(&wanted, &[deleting]).status.modules.remove(0).message.clone();
    assert_eq!(
        state_and_message,
        format!("{PREVIOUS_INSTALLATION}: waiting for module crs deletion: Beacon a/b (1)")
    );
}

#[test]
fn a_renamed_default_cr_keeps_its_first_name() {
    let fast = || {
        let mut wanted = wanted(&["lighthouse"]);
        wanted.modules[0].channel = Some("fast".into());
        wanted
    };
    let with = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut old = installed(State::Ready);
        let mut cr = serde_json::to_value(old.spec.resource.as_ref().unwrap()).unwrap();
        change(&mut cr);
        old.spec.resource = Some(serde_json::from_value(cr).unwrap());
        let plan = run(&fast(), std::slice::from_ref(&old));
        assert_eq!(plan.apply[0].spec.version, "1.1.0");
        (old.spec.resource.clone().unwrap(), plan.apply[0].spec.resource.clone().unwrap())
    };
    let (made, now) = with(&|cr| cr["metadata"]["name"] = "main".into());
    assert_eq!((made.name(), now.name()), ("main", "main"), "renamed by the new version");
    let (made, now) = with(&|cr| cr["kind"] = "Lamp".into());
    assert_eq!((made.kind(), now.kind()), ("Lamp", "Beacon"), "another kind is another object");
    let (_, now) = with(&|cr| cr["apiVersion"] = "lighthouse.tidewatch.dev/v1".into());
    assert_eq!(
        now.api_version(),
        "lighthouse.tidewatch.dev/v1alpha1",
        "of the same object the new version counts"
    );
}

#[test]
fn a_refused_manifest_sets_module_and_kyma_to_error() {
    let mut plan = run(&wanted(&["lighthouse"]), &[installed(State::Ready)]);
    let kyma = kyma();
    let refused = [("lighthouse".to_owned(), "KCP says no".to_owned())];
    let before = plan.status.clone();
    report_refused(&mut plan.status, &kyma, &[], Timestamp::UNIX_EPOCH);
    assert_eq!(plan.status, before);
    report_refused(&mut plan.status, &kyma, &refused, Timestamp::UNIX_EPOCH);
    let module = &plan.status.modules[0];
    assert_eq!(
        (module.state, module.message.as_str(), plan.status.state),
        (State::Error, "KCP says no", State::Error)
    );
    let modules = plan.status.conditions.iter().find(|c| c.type_ == conditions::MODULES).unwrap();
    assert!(modules.status == "False" && modules.message.contains("lighthouse: KCP says no"), "{modules:?}");
    let reported = Kyma { status: Some(plan.status.clone()), ..kyma };
    let mut again = plan.status.clone();
    report_refused(&mut again, &reported, &refused, Timestamp::from_second(9).unwrap());
    assert_eq!(again, plan.status, "nothing flaps");
}

fn ruled(text: &str, wanted: &KymaSpec, manifests: &[Manifest]) -> Plan {
    ruled_of(&kyma(), text, wanted, manifests)
}

fn ruled_of(kyma: &Kyma, text: &str, wanted: &KymaSpec, manifests: &[Manifest]) -> Plan {
    let policy = policy::read(text).unwrap();
    let (wanted, ruled): (KymaSpec, PolicyEffect) = apply(wanted, &policy, kyma.labels(), |_, _| true);
    plan(&Input {
        kyma,
        wanted: &wanted,
        modules: &choose(&wanted, &catalog(), &[]),
        sources: &sources(),
        manifests,
        facts: Facts { policy: Ok(Some(&ruled)), ..Facts::default() },
        now: Timestamp::UNIX_EPOCH,
    })
}

#[test]
fn policy_overrides_are_reported_in_every_state() {
    let state_and_message = |policy: &str, manifests: &[Manifest]| {
        let module = ruled(policy, &wanted(&["lighthouse"]), manifests).status.modules.remove(0);
        (module.state, module.message.clone())
    };
    let fixed = "rules: [{fix: [{name: lighthouse, channel: absent}]}]";
    let (state, message) = state_and_message(fixed, &[]);
    assert_eq!(state, State::Error);
    let remark = "set by the platform's policy: channel absent instead of regular";
    assert!(
        message.starts_with("module 'lighthouse' has no version in") && message.ends_with(remark),
        "{message}"
    );
    let unmanaged = "rules: [{fix: [{name: lighthouse, managed: false}]}]";
    let (state, message) = state_and_message(unmanaged, &[]);
    assert_eq!((state, message.as_str()), (State::Unmanaged, "set by the platform's policy: managed: false"));
    // Remarks do not accumulate.
    let mut kyma = kyma();
    for _ in 0..3 {
        let status = ruled_of(&kyma, unmanaged, &wanted(&["lighthouse"]), &[]).status;
        assert_eq!(status.modules[0].message, "set by the platform's policy: managed: false");
        kyma.status = Some(status);
    }
    let fast = "rules: [{fix: [{name: lighthouse, channel: fast}]}]";
    assert_eq!(
        state_and_message(fast, &[]),
        (State::Processing, String::new()),
        "it is said when it is there"
    );
}

#[test]
fn a_forbidden_module_blocked_by_users_reports_both_causes() {
    let mut deleting = installed(State::Ready);
    deleting.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    let waits = "waiting for module crs deletion: Beacon a/b (1)";
    let progress = crate::manifest_status::Progress::Deleting(waits.into());
    deleting.status =
        Some(crate::manifest_status::manifest_status(&deleting, &progress, &[], None, Timestamp::UNIX_EPOCH));
    let plan = ruled("rules: [{forbid: [lighthouse]}]", &wanted(&["lighthouse"]), &[deleting]);
    let module = &plan.status.modules[0];
    assert_eq!(module.state, State::Deleting);
    assert_eq!(module.message, format!("the platform's policy forbids the module; {waits}"));
}
