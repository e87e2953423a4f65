use proptest::prelude::*;

use super::{super::MIN_WINDOW, pattern::look_alikes, *};

fn findings(text: &str) -> Vec<Finding> {
    let values = Values { extra: vec![(Field::GlobalAccountId, "acme-2".into())] };
    lint(text, &values, "2026-03-01T00:00:00Z".parse().unwrap(), MIN_WINDOW).unwrap()
}

fn table(text: &str) -> String {
    let line =
        |f: Finding| format!("{}: {} {} {}: {}", f.line, f.level.name(), f.kind.name(), f.field, f.message);
    findings(text).into_iter().map(line).collect::<Vec<_>>().join("\n")
}

const WINDOWS: &str = r#""windows": [{"days": ["Sat"], "begin": "01:00:00Z", "end": "05:00:00Z"}]"#;
const DEFAULT: &str = r#""default": {"days": ["Sun"], "begin": "01:00:00Z", "end": "05:00:00Z"}"#;

fn rules(matches: &[impl std::fmt::Display]) -> String {
    let rules: Vec<_> = matches.iter().map(|m| format!("{{\"match\": {m}, {WINDOWS}}}")).collect();
    format!("{{\"rules\": [\n{}],\n{DEFAULT}}}", rules.join(",\n"))
}

#[test]
fn a_good_policy_has_no_findings() {
    assert_eq!(
        table(&rules(&[r#"{"region": "^(?:eu-|europe)"}"#, r#"{"plan": "^(?:trial|free)$"}"#])),
        TEXT_OF_PREFIX
    );
}

/// Prefixes are usually intended.
const TEXT_OF_PREFIX: &str = "2: note anchor-matters rules[0].match.region: '^(?:eu-|europe)' matches the beginning of \
    'eu-central-1', 'eu-central-2', 'eu-de-1', which it would not if it had to match all of the value";

#[test]
fn suspicious_patterns_are_reported() {
    insta::assert_snapshot!(table(&rules(&[
        r#"{"region": "northeurope|westus|central│us"}"#,
        r#"{"region": "us"}"#,
        r#"{"globalAccountID": "acme"}"#,
        r#"{"region": "asia|"}"#,
        r#"{"region": "^$"}"#,
        r#"{"region": "brazil south|ja\u200Bpan|ｅu"}"#,
        r#"{"plan": "own\\_cluster"}"#,
        r#"{"plan": "free "}"#,
    ])));
}

#[test]
fn unreachable_rules_are_reported() {
    insta::assert_snapshot!(table(&rules(&[
        r#"{"region": "^europe"}"#,
        r#"{"region": "^europe"}"#,
        r#"{"region": "europe"}"#,
        r#"{"region": "europe-west3|europe-west4"}"#,
        r#"{"region": "europe-west.*"}"#,
        r#"{"region": "europe-north1", "plan": "^azure$"}"#,
        r#"{"plan": "^azure$", "region": "westeurope"}"#,
        r#"{"region": "west europe"}"#,
        "{}",
        r#"{"plan": "trial|free"}"#,
        r#"{"plan": "^trial$"}"#,
        r#"{"plan": "^(?:free|trial)$"}"#,
        r#"{"plan": "^free$|^trial$"}"#,
        r#"{"plan": "^(?:free|aws)$"}"#,
    ])));
}

#[test]
fn suspicious_maintenance_windows_are_reported() {
    insta::assert_snapshot!(table(
        r#"{"rules": [
{"match": {"plan": "^aws$"}},
{"match": {"plan": "^gcp$"}, "windows": [
  {"days": ["Mon"], "begin": "01:00:00Z", "end": "01:20:00Z"},
  {"days": ["Mon"], "begin": "01:00:00Z", "end": "01:21:00Z"},
  {"days": ["Monday", "tue"], "begin": "01:00:00Z", "end": "05:00:00Z"},
  {"days": ["Tue"], "begin": "2026-01-01T01:00:00Z", "end": "05:00:00Z"},
  {"begin": "01:00:00Z", "end": "05:00:00Z"},
  {"begin": "2026-05-01T20:00:00Z", "end": "2026-04-02T01:00:00Z"},
  {"begin": "2026-05-01T20:00:00Z", "end": "2026-05-01T20:05:00Z"}]},
{"match": {"plan": "^free$"}, "windows": [
  {"begin": "2026-01-01T20:00:00Z", "end": "2026-01-02T00:00:00Z"},
  {"begin": "2026-02-01T20:00:00Z", "end": "2026-02-02T00:00:00Z", "comment": "the last one"}]}
]}"#
    ));
}

#[test]
fn incomplete_window_times_are_reported() {
    insta::assert_snapshot!(table(
        r#"{"rules": [{"match": {"plan": "^aws$"}, "windows": [
  {"days": ["Sat", "Sun"]},
  {"days": ["Mon"], "end": "04:00:00+02:00"},
  {"end": "2026-05-02T00:00:00Z"},
  {"begin": "20:00:00Z", "end": "2026-05-02T00:00:00Z"},
  {"begin": "2026-05-01T20:00:00Z"},
  {"begin": "2026-05-01T20:00:00Z", "end": "04:00:00Z"}]}],
"default": {"days": ["Sun"], "begin": "01:00:00Z"}}"#
    ));
}

#[test]
fn time_zone_mismatches_are_reported() {
    insta::assert_snapshot!(table(
        r#"{"rules": [{"match": {"plan": "^aws$"}, "windows": [
  {"begin": "2026-05-01T20:00:00Z", "end": "2026-05-02T00:00:00Z", "timeZone": "Europe/Berlin"},
  {"days": ["Mon"], "begin": "01:00:00+01:00", "end": "05:00:00+02:00", "timeZone": "europe/berlin"},
  {"days": ["Tue"], "begin": "01:00:00+01:00", "end": "05:00:00+02:00", "timeZone": ""}]}],
"default": {"days": ["Mon"], "begin": "01:00:00Z", "end": "05:00:00+02:00", "timeZone": "Europe/Berlin"}}"#
    ));
}

#[test]
fn never_matching_windows_are_not_reported_as_over() {
    let reported = |text: &str| table(text).lines().map(str::to_owned).collect::<Vec<_>>();
    for never in ["{}", r#"{"begin": "2026-05-02T00:00:00Z", "end": "2026-05-01T00:00:00Z"}"#] {
        let reported = reported(&format!(r#"{{"default": {never}}}"#));
        assert!(reported.iter().any(|line| line.contains("never-matches")), "{reported:?}");
        assert!(!reported.iter().any(|line| line.contains("over")), "{reported:?}");
    }
    let kolkata = r#"{"default": {"days": ["Mon"], "begin": "01:00:00+05:30", "end": "05:00:00+05:30", "timeZone": "Asia/Kolkata"}}"#;
    assert_eq!(reported(kolkata), Vec::<String>::new(), "the Go manager reads the same");
}

#[test]
fn an_expired_default_window_is_reported() {
    let text =
        r#"{"default": {"begin": "2026-01-01T20:00:00Z", "end": "2026-01-02T00:00:00Z"}, "Default": 1}"#;
    insta::assert_snapshot!(table(text));
}

#[test]
fn the_number_of_findings_is_limited() {
    let unknown: Vec<_> = (0..2 * MAX_FINDINGS).map(|n| format!("\"x{n}\": 1")).collect();
    assert_eq!(findings(&format!("{{{}}}", unknown.join(","))).len(), MAX_FINDINGS);
}

#[test]
fn each_look_alike_character_is_reported_once() {
    assert_eq!(look_alikes("a│b│c\u{200B}é"), [('│', Some('|')), ('\u{200B}', None)]);
    assert_eq!(look_alikes("ａ（ｚ"), [('ａ', Some('a')), ('（', Some('(')), ('ｚ', Some('z'))]);
}

fn any_matches() -> impl Strategy<Value = Vec<String>> {
    let parts = [
        "eu",
        "eu-",
        "us",
        "east",
        "eastus",
        "^eu",
        "us$",
        "^us$",
        "^(?:eu|us)$",
        "^(east)$",
        "^e|u$",
        "[a-e]",
        "west",
        "a b",
        "e.*t",
    ];
    let pattern =
        proptest::collection::vec(proptest::sample::select(parts.to_vec()), 1..4).prop_map(|w| w.join("|"));
    let field = proptest::sample::select(vec!["region", "plan"]);
    proptest::collection::vec((field, pattern).prop_map(|(f, p)| format!("{{\"{f}\": \"{p}\"}}")), 1..6)
}

proptest! {
    #[test]
    fn a_rule_reported_as_unreachable_never_matches(matches in any_matches(), region in "[a-eu]{0,2}-?(east|us|eu|west)?[st]?", plan in "(east|us|eu|west|[a-e]){0,3}") {
        let text = rules(&matches);
        let policy = Policy::parse(&text).unwrap();
        let labels = [(Field::Region, region), (Field::Plan, plan)].map(|(f, v)| (f.label().to_owned(), v)).into();
        if let Some((n, _)) = policy.rule_of(&labels) {
            prop_assert_eq!(never_first(policy.rules(), n), None);
        }
    }

    #[test]
    fn lint_never_panics(text: String, matches in any_matches(), days in proptest::collection::vec("[A-Za-z]{0,4}", 0..4), min: Duration) {
        let now = "2026-03-01T00:00:00Z".parse().unwrap();
        let _ = lint(&text, &Values::default(), now, min);
        let text = rules(&matches).replace("[\"Sat\"]", &format!("{days:?}"));
        for finding in lint(&text, &Values::default(), now, min).unwrap() {
            prop_assert!(finding.line <= text.lines().count());
        }
    }
}
