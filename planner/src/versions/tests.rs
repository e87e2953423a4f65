use std::fmt::Write;

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn wanted(kyma_channel: &str, module: &str, channel: Option<&str>) -> KymaSpec {
    let module = Module { name: module.into(), channel: channel.map(Into::into), ..Module::default() };
    KymaSpec { channel: kyma_channel.into(), modules: vec![module], ..KymaSpec::default() }
}

fn version(kyma_channel: &str, module: &str, channel: Option<&str>) -> Result<String, Fault> {
    choose(&wanted(kyma_channel, module, channel), &fixtures::catalog(), &[])
        .remove(0)
        .outcome
        .map(|chosen| chosen.version)
}

#[test]
fn the_modules_own_channel_overrides_the_kymas() {
    assert_eq!(version("regular", "lighthouse", None).unwrap(), "1.0.0");
    assert_eq!(version("regular", "lighthouse", Some("fast")).unwrap(), "1.1.0");
    assert_eq!(version("fast", "lighthouse", None).unwrap(), "1.1.0");
    assert_eq!(version("", "lighthouse", None).unwrap(), "1.0.0");
}

#[test]
fn every_fault_names_its_cause() {
    let text = |r: Result<String, Fault>| r.unwrap_err().to_string();
    assert!(text(version("regular", "nothere", None)).contains("no ModuleReleaseMeta of that name"));
    assert!(
        text(version("odd", "lighthouse", None)).contains("channel 'odd' (it has: regular, fast, broken)")
    );
    assert!(text(version("none", "lighthouse", None)).contains("'none'"));
    assert!(text(version("broken", "lighthouse", None)).contains("lighthouse-9.9.9"));
    assert!(text(version("regular", "guard", None)).contains("mandatory"));
}

#[test]
fn faults_of_installed_modules_are_warnings_except_channels() {
    let states = |fault: Fault| (fault.state(false), fault.state(true));
    let fault = |channel, module| version(channel, module, None).unwrap_err();
    assert_eq!(states(fault("regular", "nothere")), (State::Error, State::Warning));
    assert_eq!(states(fault("broken", "lighthouse")), (State::Error, State::Warning));
    assert_eq!(states(fault("odd", "lighthouse")), (State::Error, State::Error));
    assert_eq!(states(fault("regular", "guard")), (State::Warning, State::Warning));
}

/// Legacy template.
fn old(name: &str, module: &str, channel: &str, spec: Value, descriptor: Value) -> Arc<ModuleTemplate> {
    let mut template = json!({"metadata": {"name": name}, "spec": {"moduleName": module, "channel": channel,
        "descriptor": descriptor}});
    template["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    Arc::new(serde_json::from_value(template).unwrap())
}

fn component(module: &str, version: &str) -> Value {
    json!({"component": {"name": format!("tidewatch.dev/module/{module}"), "version": version}})
}

fn old_templates() -> Vec<Arc<ModuleTemplate>> {
    vec![
        old("buoy-regular", "buoy", "regular", json!({}), component("buoy", "0.9.0")),
        old("buoy-fast", "buoy", "fast", json!({"version": "1.0.0"}), component("buoy", "0.0.0")),
        old("buoy-next", "buoy", "next", json!({}), json!({})),
        old("buoy-twin-b", "buoy", "twin", json!({}), component("buoy", "0.9.0")),
        old("buoy-twin-a", "buoy", "twin", json!({}), component("buoy", "0.9.0")),
        old("anchor-regular", "anchor", "regular", json!({"mandatory": true}), component("anchor", "1.0.0")),
        // Shadowed by the release meta.
        old("lighthouse-beta", "lighthouse", "beta", json!({}), component("lighthouse", "7.0.0")),
    ]
}

fn own_templates() -> Vec<Arc<ModuleTemplate>> {
    vec![
        old("raft-regular", "raft", "regular", json!({"version": "0.1.0"}), component("raft", "0.1.0")),
        old(
            "lighthouse-mine",
            "lighthouse",
            "regular",
            json!({"version": "8.0.0"}),
            component("lighthouse", "8.0.0"),
        ),
        old("keel-mine", "keel", "regular", json!({"version": "8.0.0"}), component("keel", "8.0.0")),
        old("buoy-mine", "buoy", "mine", json!({"version": "8.0.0"}), component("buoy", "8.0.0")),
    ]
}

const LISTED: [Listed<'static>; 2] = [
    Listed { version: "1.0.0", deprecation_date: Some("2026-12-31"), deprecation_message: Some("go to 1.1") },
    Listed { version: "0.8.0", deprecation_date: None, deprecation_message: None },
];

fn offered() -> fixtures::FakeCatalog {
    let mut catalog = fixtures::catalog();
    for template in old_templates() {
        catalog.put(template);
    }
    // Without a release meta.
    catalog.put(old("keel-1.0.0", "keel", "", json!({"version": "1.0.0"}), json!({})));
    let mut lighthouse = catalog.releases["lighthouse"].as_ref().clone();
    lighthouse.spec.versions =
        serde_json::from_value(json!([{"version": "1.0.0"}, {"version": "0.8.0"}])).unwrap();
    catalog.releases.insert("lighthouse".into(), Arc::new(lighthouse));
    catalog
}

fn changed([regular, fast, allow, ends, cause]: [usize; 5]) -> fixtures::FakeCatalog {
    let versions = ["1.0.0", "1.1.0", "9.9.9"];
    let mut catalog = offered();
    let mut lighthouse = catalog.releases["lighthouse"].as_ref().clone();
    lighthouse.spec.channels = serde_json::from_value(json!([
        {"channel": "regular", "version": versions[regular % 3]}, {"channel": "fast", "version": versions[fast % 3]}
    ]))
    .unwrap();
    lighthouse.spec.allow_downgrade = [None, Some(true)][allow % 2];
    match ends % 3 {
        0 => lighthouse.spec.versions[0].deprecation_message = "go on".into(),
        1 => lighthouse.spec.versions.retain(|listed| listed.version != "1.0.0"),
        _ => {}
    }
    catalog.releases.insert("lighthouse".into(), Arc::new(lighthouse));
    let change = |catalog: &mut fixtures::FakeCatalog, name: &str| {
        let mut template = catalog.templates[name].as_ref().clone();
        template.spec.progress_deadline_seconds = Some(9);
        catalog.put(Arc::new(template));
    };
    match cause % 6 {
        0 => change(&mut catalog, "lighthouse-1.0.0"),
        1 => change(&mut catalog, "buoy-regular"),
        2 => drop(catalog.templates.remove("buoy-twin-a")),
        3 => drop(catalog.releases.remove("lighthouse")),
        4 => drop(catalog.templates.remove("lighthouse-1.1.0")),
        _ => {}
    }
    catalog
}

#[test]
fn every_requested_version_has_an_outcome() {
    let (catalog, local) = (offered(), own_templates());
    let requests = [
        ("lighthouse", "regular", None),
        ("lighthouse", "fast", None),
        ("lighthouse", "beta", None),
        ("lighthouse", "none", None),
        ("lighthouse", "broken", None),
        ("lighthouse", "regular", Some("1.1.0")),
        ("lighthouse", "none", Some("1.0.0")),
        ("lighthouse", "regular", Some("")),
        ("lighthouse", "regular", Some("0.8.0")),
        ("lighthouse", "regular", Some("8.0.0")),
        ("guard", "regular", None),
        ("guard", "regular", Some("2.0.0")),
        ("buoy", "regular", None),
        ("buoy", "fast", None),
        ("buoy", "next", None),
        ("buoy", "twin", None),
        ("buoy", "mine", None),
        ("buoy", "odd", Some("0.9.0")),
        ("buoy", "regular", Some("8.0.0")),
        ("anchor", "regular", None),
        ("raft", "regular", None),
        ("raft", "fast", None),
        ("raft", "fast", Some("0.1.0")),
        ("nothere", "regular", None),
        ("keel", "regular", None),
        ("keel", "regular", Some("1.0.0")),
    ];
    let mut table = String::new();
    for (module, channel, pin) in requests {
        let request = ModuleRequest { module, channel, pin };
        let outcome = match resolve(request, &catalog, &local) {
            Ok(chosen) => {
                let template = chosen.template.metadata.name.clone().unwrap();
                format!("{} of {} by {template} ({:?})", chosen.version, chosen.component, chosen.origin)
            }
            Err(fault) => format!("{}, installed {}: {fault}", fault.state(false), fault.state(true)),
        };
        let pin = pin.map(|pin| format!(" pinned '{pin}'")).unwrap_or_default();
        writeln!(table, "{module} {channel}{pin}\n  {outcome}").unwrap();
    }
    insta::assert_snapshot!(table);
}

#[test]
fn only_a_lower_version_is_refused() {
    let cases = [
        ("1.2.3", "1.2.3"),
        ("1.2.3", "1.2.2"),
        ("1.10.0", "1.9.9"),
        ("1.2.3", "1.3.0-rc1"),
        ("1.2.3", "1.2.3-rc1"),
        ("1.2.3-rc2", "1.2.3-rc1"),
        ("2.0.0-rc1", "1.9.0"),
        ("v1.2.3", "1.2.4"),
        ("", "0.0.1"),
        ("latest", "1.0.0"),
        ("1.0.0", "1.0"),
    ];
    let mut table = String::new();
    for (old, new) in cases {
        let value = may_replace(Some(old), new, false);
        assert_eq!(may_replace(Some(old), new, true), Ok(()));
        assert_eq!(may_replace(None, new, false), Ok(()));
        let text =
            value.map_or_else(|fault| format!("{}: {fault}", fault.state(true)), |()| "yes".to_owned());
        writeln!(table, "'{old}' -> '{new}'  {text}").unwrap();
    }
    insta::assert_snapshot!(table);
}

#[test]
fn a_deprecation_passes_through_phases() {
    let table: Vec<_> =
        ["2026-11-30T23:59:59Z", "2026-12-01T00:00:00Z", "2026-12-30T23:59:59Z", "2026-12-31T00:00:00Z"]
            .into_iter()
            .map(|now| {
                let end = deprecation(&LISTED, "1.0.0", now.parse().unwrap()).unwrap();
                let next = end.next.map(|next| next.to_string());
                format!("{now}  {:?}, next {next:?}: {}", end.phase, end.message)
            })
            .collect();
    insta::assert_snapshot!(table.join("\n"));
}

#[test]
fn a_deprecation_without_a_valid_date_is_reported() {
    let end = |date, message| {
        let listed = Listed { version: "1.0.0", deprecation_date: date, deprecation_message: message };
        deprecation(&[listed], "1.0.0", Timestamp::UNIX_EPOCH)
    };
    assert_eq!(end(None, None), None);
    assert_eq!(end(Some(""), Some(" ")), None);
    assert_eq!(deprecation(&LISTED, "9.9.9", Timestamp::UNIX_EPOCH), None);
    let message = |date, message| end(date, message).map(|e| (e.date, e.phase, e.next, e.message)).unwrap();
    let announced = |text: &str| (None, Phase::Announced, None, text.to_owned());
    assert_eq!(message(None, Some("use\n2")), announced("version 1.0.0 is deprecated: use 2"));
    assert_eq!(
        message(Some("soon"), None),
        announced("version 1.0.0 is deprecated (its date, 'soon', cannot be read)")
    );
    let exact = end(Some("2026-12-31T12:00:00+02:00"), None).unwrap();
    assert_eq!(exact.date, Some("2026-12-31T10:00:00Z".parse().unwrap()));
    assert_eq!(end(Some("0001-01-01T00:00:00Z"), None).unwrap().phase, Phase::Ended);
}

fn any_version() -> impl Strategy<Value = String> {
    (0..4u8, 0..4u8, 0..12u8, prop_oneof![Just(""), Just("-rc1"), Just("-beta")])
        .prop_map(|(a, b, c, pre)| format!("{a}.{b}.{c}{pre}"))
}

fn any_request() -> impl Strategy<Value = (String, String, Option<String>)> {
    let name = |names: &[&'static str]| proptest::sample::select(names.to_vec()).prop_map(str::to_owned);
    let pins = ["1.0.0", "1.1.0", "0.8.0", "0.9.0", "8.0.0", "0.1.0", "2.0.0", ""];
    (
        name(&["lighthouse", "guard", "buoy", "anchor", "raft", "keel", "nothere"]),
        name(&["regular", "fast", "beta", "twin", "mine", "none", "broken"]),
        proptest::option::of(name(&pins)),
    )
}

fn outcome(result: Result<Chosen, Fault>) -> Result<(String, String, Origin), Fault> {
    result.map(|chosen| {
        (chosen.version, chosen.template.metadata.name.clone().unwrap_or_default(), chosen.origin)
    })
}

proptest! {
    #[test]
    fn an_installed_version_is_never_lowered(installed in any_version(), wanted in any_version()) {
        let core = |v: &str| -> Vec<u32> { v.split('-').next().unwrap().split('.').map(|n| n.parse().unwrap()).collect() };
        let passes = may_replace(Some(&installed), &wanted, false).is_ok();
        prop_assert_eq!(passes, core(&wanted) >= core(&installed));
        // The reverse direction is an upgrade.
        prop_assert!(passes || may_replace(Some(&wanted), &installed, false).is_ok());
    }

    #[test]
    fn a_pinned_version_does_not_depend_on_channels((module, channel, pin) in any_request(), other in "[a-z]{3,8}") {
        let Some(pin) = pin.filter(|pin| !pin.is_empty()) else { return Ok(()) };
        let (catalog, local) = (offered(), own_templates());
        let of = |channel: &str| outcome(resolve(ModuleRequest { module: &module, channel, pin: Some(&pin) }, &catalog, &local));
        prop_assert_eq!(of(&channel), of(&other));
        if let Ok((version, ..)) = of(&channel) {
            prop_assert_eq!(version, pin);
        }
    }

    #[test]
    fn runtime_templates_do_not_shadow_kcp_versions((module, channel, pin) in any_request(), order in any::<u64>()) {
        let (catalog, mut local) = (offered(), own_templates());
        let request = ModuleRequest { module: &module, channel: &channel, pin: pin.as_deref() };
        let all = outcome(resolve(request, &catalog, &local));
        let kcp = outcome(resolve(request, &catalog, &[]));
        if catalog.release(&module).is_some() {
            let mut new = offered();
            new.templates.retain(|_, t| !is_legacy(t));
            prop_assert_eq!(&all, &outcome(resolve(request, &new, &local)));
        }
        let available = !catalog.templates_of(&module).is_empty() || catalog.release(&module).is_some();
        let further = matches!(kcp, Err(Fault::NotOffered { .. })) && catalog.release(&module).is_some();
        let is_local = matches!(all, Ok((.., Origin::Local)));
        prop_assert!(!available || !is_local || further, "{all:?}");
        prop_assert!(is_local || !available || all == kcp);
        let count = local.len();
        local.rotate_left(usize::try_from(order >> 8).unwrap() % count);
        prop_assert_eq!(all, outcome(resolve(request, &catalog, &local)));
    }

    #[test]
    fn an_extra_pinned_version_comes_from_the_runtime_template(channel in "[a-z]{3,8}") {
        let (catalog, local) = (offered(), own_templates());
        let of = |pin: Option<&str>, local: &[Arc<ModuleTemplate>]| {
            outcome(resolve(ModuleRequest { module: "lighthouse", channel: &channel, pin }, &catalog, local))
        };
        let own = Ok(("8.0.0".to_owned(), "lighthouse-mine".to_owned(), Origin::Local));
        prop_assert_eq!(of(Some("8.0.0"), &local), own);
        // KCP's answers stay.
        prop_assert_eq!(of(Some("8.0.1"), &local), of(Some("8.0.1"), &[]));
        prop_assert_eq!(of(Some("1.0.0"), &local), of(Some("1.0.0"), &[]));
        prop_assert!(of(Some("1.0.0"), &local).is_ok());
    }

    #[test]
    fn a_catalog_change_affects_exactly_changed_answers(
        module in proptest::sample::select(vec!["lighthouse", "buoy", "nothere"]),
        channel in proptest::sample::select(vec!["regular", "fast", "twin"]),
        pin in proptest::sample::select(vec![None, None, Some("1.0.0"), Some("0.8.0")]),
        (before, other, at) in (any::<[usize; 5]>(), any::<usize>(), 0..5usize),
    ) {
        let mut after = before;
        after[at] = other;
        let (before, after) = (changed(before), changed(after));
        let want = VersionRequest { channel: if pin.is_some() { "" } else { channel }.into(), pin: pin.map(str::to_owned) };
        let differs = Answer::of(&want, module, &before).differs(&Answer::of(&want, module, &after));
        let taken = |catalog: &fixtures::FakeCatalog| {
            let outcome = resolve(want.for_module(module), catalog, &[]);
            let found = outcome.as_ref().ok().map(|c| (c.template.spec.clone(), c.version.clone()));
            let release = catalog.release(module);
            let all = release.iter().flat_map(|release| release.spec.versions.clone());
            let chosen = found.as_ref().map(|(_, version)| version);
            let reported: Vec<_> =
                all.filter(|v| !v.deprecation_message.is_empty() && Some(&v.version) == chosen).collect();
            (self::outcome(outcome), found, reported, release.map(|r| r.spec.allow_downgrade))
        };
        prop_assert_eq!(differs, taken(&before) != taken(&after));
    }

    #[test]
    fn the_next_recheck_is_the_next_phase(end in 0..4_000_000_000i64, now in 0..4_000_000_000i64, later in 0..100_000_000i64) {
        let date = Timestamp::from_second(end).unwrap().to_string();
        let listed = [Listed { version: "1.0.0", deprecation_date: Some(&date), deprecation_message: None }];
        let at = |t| deprecation(&listed, "1.0.0", t).unwrap();
        let now = Timestamp::from_second(now).unwrap();
        let then = now + SignedDuration::from_secs(later);
        let (a, b) = (at(now), at(then));
        prop_assert!(a.phase <= b.phase);
        prop_assert_eq!(a.next.is_none_or(|next| then < next), a.phase == b.phase);
        if let Some(next) = a.next {
            prop_assert!(next > now);
            prop_assert!(at(next).phase > a.phase);
        }
        if a.phase == b.phase {
            prop_assert_eq!(a, b);
        }
    }

    #[test]
    fn version_texts_never_panic(a: String, b: String, c: String) {
        let _ = may_replace(Some(&a), &b, false);
        let listed = [Listed { version: &a, deprecation_date: Some(&b), deprecation_message: Some(&c) }];
        let _ = deprecation(&listed, &a, Timestamp::MAX);
        let _ = deprecation(&listed, &a, Timestamp::MIN);
    }
}

#[test]
fn the_last_repository_context_names_the_registry() {
    let registry = |contexts: Value| {
        let descriptor =
            json!({"component": {"name": "x.dev/raft", "version": "1.0.0", "repositoryContexts": contexts}});
        legacy::registry(&old("raft", "raft", "regular", json!({}), descriptor))
    };
    let context = |base: &str, sub: &str| json!({"type": "OCIRegistry", "baseUrl": base, "subPath": sub});
    for (contexts, value) in [
        (json!([context("registry.example", "")]), Some("registry.example")),
        (
            json!([context("first.example", ""), context("https://last.example:5000/a/", "b/c")]),
            Some("last.example:5000/a/b/c"),
        ),
        (json!([{"baseUrl": "http://plain.example/"}]), Some("plain.example")),
        (json!([{"baseUrl": 7}]), None),
        (json!([context("two\nlines.example", "")]), None),
        (json!([context("", "")]), None),
        (json!([context(&"x".repeat(600), "")]), None),
        (json!([]), None),
        (json!("registry.example"), None),
    ] {
        assert_eq!(registry(contexts.clone()).as_deref(), value, "{contexts}");
    }
}
