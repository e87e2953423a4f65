use std::{collections::BTreeMap, fmt::Write, time::Duration};

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use super::*;

const FLEET: &str = r#"{
  "rules": [
    {"match": {"plan": "trial|free"},
     "windows": [{"days": ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"], "begin": "01:00:00Z", "end": "01:00:00Z"}]},
    {"match": {"globalAccountId": "^acme$", "platformRegion": "cf-eu1"},
     "windows": [{"days": ["Sat"], "begin": "22:00:00+01:00", "end": "02:00:00+01:00"}]},
    {"match": {"region": "europe|eu-"},
     "windows": [{"begin": "2026-03-28T20:00:00Z", "end": "2026-03-29T00:00:00Z"},
                 {"begin": "2026-02-01T20:00:00-08:00", "end": "2026-02-02T00:00:00-08:00"}]},
    {"match": {"region": "asia|ap-"},
     "windows": [{"days": ["Mon"], "begin": "00:30:00+05:30", "end": "04:30:00+05:30"},
                 {"days": ["Thu"], "begin": "00:30:00+13:00", "end": "04:30:00+13:00"}]},
    {"match": {"region": "brazil"},
     "windows": [{"days": ["Sun"], "begin": "02:00:00Z", "end": "02:20:00Z"}]}
  ],
  "default": {"days": ["Wed", "Sun"], "begin": "20:00:00Z", "end": "00:00:00Z"}
}"#;

fn policy(text: &str) -> Policy {
    Policy::parse(text).unwrap()
}

fn kyma(values: &[(Field, &str)]) -> BTreeMap<String, String> {
    values.iter().map(|(field, value)| (field.label().to_owned(), (*value).to_owned())).collect()
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// Description, labels, times.
type Case<'a> = (&'a str, &'a [(Field, &'a str)], &'a [&'a str]);

/// Around clock changes, window ends and midnight.
#[test]
fn the_next_window_follows_rules_days_and_clock_changes() {
    use Field::{GlobalAccountId, Plan, PlatformRegion, Region};
    let fleet = policy(FLEET);
    let europe = [(Region, "europe-west3")];
    let asia = [(Region, "southeastasia")];
    let account = [(GlobalAccountId, "acme"), (Region, "eastus")];
    let other = [(GlobalAccountId, "acme-2"), (Plan, "azure"), (Region, "eastus")];
    let cases: [Case<'_>; 8] = [
        (
            "the first rule goes before the region's; a window from 01:00 to 01:00 lasts a day",
            &[(Plan, "free"), (Region, "europe-west3")],
            &["2026-03-02T00:59:00Z", "2026-03-02T01:00:00Z", "2026-03-02T00:39:59Z", "2026-03-02T00:40:00Z"],
        ),
        (
            "one set field is enough; past midnight it is still Saturday's window",
            &account,
            &[
                "2026-03-06T12:00:00Z",
                "2026-03-07T20:59:59Z",
                "2026-03-07T21:00:00Z",
                "2026-03-08T00:30:00Z",
                "2026-03-08T00:39:59Z",
                "2026-03-08T00:40:00Z",
                "2026-03-28T23:30:00Z",
                "2026-03-29T00:30:00Z",
                "2026-10-24T20:59:00Z",
                "2026-10-25T00:30:00Z",
            ],
        ),
        ("a pattern matches in the middle", &[(PlatformRegion, "cf-eu10")], &["2026-03-06T12:00:00Z"]),
        (
            "dates; the next one of the list counts; when all are over, the default",
            &europe,
            &[
                "2026-01-01T00:00:00Z",
                "2026-02-02T05:00:00Z",
                "2026-02-02T08:00:00Z",
                "2026-03-28T23:39:59Z",
                "2026-03-28T23:40:00Z",
                "2026-03-29T21:00:00Z",
            ],
        ),
        (
            "the day is that of the offset; the next one of the list counts",
            &asia,
            &["2026-03-02T00:00:00Z", "2026-03-03T00:00:00Z", "2026-03-04T12:00:00Z", "2026-03-08T18:59:00Z"],
        ),
        (
            "a window that is too short does not mean the default",
            &[(Region, "brazilsouth")],
            &["2026-03-08T02:00:00Z"],
        ),
        (
            "no rule: the default, which ends at midnight",
            &other,
            &["2026-03-04T23:39:00Z", "2026-03-04T23:40:00Z"],
        ),
        ("no labels at all", &[], &["2026-03-05T00:00:00Z"]),
    ];
    let mut table = String::new();
    for (cause, labels, times) in cases {
        writeln!(table, "{cause}").unwrap();
        for time in times {
            let window = match next(&fleet, &kyma(labels), at(time), MIN_WINDOW) {
                Some(w) => format!("{} .. {}{}", w.begin, w.end, if w.open { " open" } else { "" }),
                None => "never".to_owned(),
            };
            writeln!(table, "  {time}  {window}").unwrap();
        }
    }
    insta::assert_snapshot!(table);
}

#[test]
fn rules_without_patterns_and_empty_values_match_nothing() {
    let any = policy(r#"{"rules": [{"match": {"region": ".*", "plan": ""}}, {"match": {}}, {}]}"#);
    assert_eq!(any.rule_of(&kyma(&[(Field::Region, "x")])).unwrap().0, 0);
    assert_eq!(any.rule_of(&kyma(&[(Field::Region, ""), (Field::Plan, "p")])), None);
}

#[test]
fn patterns_match_as_in_go() {
    let matches = |pattern: &str, value: &str| Pattern::new(pattern).unwrap().is_match(value);
    assert!(matches("us", "australiaeast"));
    assert!(matches(r"\w\d$", "us-east1"));
    assert!(!matches(r"^\d$", "٣"));
    assert!(matches("(?i)EU-", "eu-1"));
    assert!(matches("[é]", "é"));
    assert!(matches("central│us", "central│us"));
    for (pattern, value, expected) in [
        (r"^\Qa.b\E+$", "a.bb", true),
        (r"^\Qa.b\E+$", "axb", false),
        (r"\Qeu{1}", "eu{1}", true),
        (r"\\Q", r"\Q", true),
        ("^a{1$", "a{1", true),
        ("^a{,2}$", "a{,2}", true),
        ("^a{1,2}$", "aa", true),
        ("^a{x}$", "a{x}", true),
        ("^[{]$", "{", true),
        ("^[]{]{2}$", "]{", true),
        ("^[^]]$", "]", false),
        (r"^\p{Greek}\x{41}{2}$", "αAA", true),
        (r"^[\]{]+x{$", "]{x{", true),
    ] {
        assert_eq!(matches(pattern, value), expected, "{pattern} {value}");
    }
}

#[test]
fn pattern_size_and_nesting_are_limited() {
    let fault = |pattern: &str| Pattern::new(pattern).unwrap_err();
    assert_eq!(fault(&"a".repeat(8193)), "the pattern has 8193 bytes, the limit is 8192");
    assert!(fault("((a{99}){99}){99}").contains("when compiled"));
    assert!(fault(&format!("{}a{}", "(".repeat(99), ")".repeat(99))).contains("nest"));
    assert!(fault("(a").contains("unclosed group"));
    assert!(fault(r"(a)\1").contains("backreferences are not supported"));
    // Long word lists fit.
    let ids: Vec<_> = (0..200).map(|n| format!("0b1c2d3e-0000-4000-8000-{n:012}")).collect();
    assert!(Pattern::new(&ids.join("|")).unwrap().is_match(&ids[199]));
}

#[test]
fn a_policy_is_parsed_as_in_go() {
    let same = policy(
        r#"{"RULES": [{"Match": {"REGION": "eu", "region": null, "Region": "eu"}, "windows": null}],
            "default": {"days": []}, "more": 1}"#,
    );
    assert_eq!(same.rules().len(), 1);
    assert!(same.default_window().is_empty());
    assert_eq!(policy("{}"), Policy::default());
    let nested: BTreeMap<String, Policy> =
        serde_json::from_str(&format!(r#"{{"policy.json": {FLEET}}}"#)).unwrap();
    assert_eq!(nested["policy.json"], policy(FLEET));
}

/// Window, time, and Go's answer.
#[test]
fn incomplete_windows_are_read_as_in_go() {
    let (wednesday, sunday) = ("2026-03-04T12:00:00Z", "2026-03-08T12:00:00Z");
    for (window, now, expected) in [
        (r#"{"days": ["Sat", "Sun"]}"#, wednesday, "2026-03-07T00:00:00Z .. 2026-03-08T00:00:00Z"),
        (r#"{"days": ["Sat", "Sun"]}"#, sunday, "open until 2026-03-09T00:00:00Z"),
        (
            r#"{"days": ["Sat"], "end": "04:00:00+02:00"}"#,
            wednesday,
            "2026-03-07T00:00:00Z .. 2026-03-07T02:00:00Z",
        ),
        (
            r#"{"days": ["Sat"], "begin": "20:00:00+02:00"}"#,
            wednesday,
            "2026-03-07T18:00:00Z .. 2026-03-08T00:00:00Z",
        ),
        (
            r#"{"days": ["Sat"], "begin": "2020-01-01T22:00:00+01:00", "end": "1999-12-31T02:00:00Z"}"#,
            wednesday,
            "2026-03-07T21:00:00Z .. 2026-03-08T02:00:00Z",
        ),
        (r#"{"end": "2026-03-08T00:00:00Z"}"#, wednesday, "open until 2026-03-08T00:00:00Z"),
        (r#"{"end": "2026-03-08T00:00:00Z"}"#, sunday, "never"),
        (
            r#"{"begin": "20:00:00Z", "end": "2026-03-08T00:00:00Z"}"#,
            wednesday,
            "open until 2026-03-08T00:00:00Z",
        ),
        (r#"{"begin": "2026-03-01T00:00:00Z"}"#, wednesday, "never"),
        (r#"{"begin": "2026-03-01T00:00:00Z", "end": "20:00:00Z"}"#, wednesday, "never"),
        (r#"{"begin": "01:00:00Z", "end": "20:00:00Z"}"#, wednesday, "never"),
        ("{}", wednesday, "never"),
    ] {
        let policy = policy(&format!(r#"{{"default": {window}}}"#));
        let window_text = match next(&policy, &BTreeMap::new(), at(now), MIN_WINDOW) {
            Some(found) if found.open => format!("open until {}", found.end),
            Some(found) => format!("{} .. {}", found.begin, found.end),
            None => "never".to_owned(),
        };
        assert_eq!(window_text, expected, "{window} at {now}");
    }
}

#[test]
fn every_error_names_its_line_and_field() {
    let cases = [
        "",
        "{\n  \"rules\": [}",
        "[]",
        "{\"rules\": {}}",
        "{\"rules\": [\n  {},\n  7]}",
        "{\"rules\": [{\n  \"match\": {\"plan\": \"a\",\n    \"region\": \"eu-(\"}}]}",
        "{\"rules\": [{\"match\": {\"plan\":\n  1}}]}",
        "{\"rules\": [{\"windows\": [\n  {\"days\": [\"Mon\"], \"begin\": \"1:00\", \"end\": \"02:00:00Z\"}]}]}",
        "{\"rules\": [{\"windows\": [\n  {\"days\": [\"Mon\"], \"begin\": \"01:00:00\", \"end\": \"02:00:00Z\"}]}]}",
        "{\"rules\": [{\"windows\": [\n  {\"begin\": \"2026-02-30T01:00:00Z\", \"end\": \"02:00:00Z\"}]}]}",
        "{\"default\":\n  {\"days\": [\"Sat\"],\n   \"begin\": null, \"end\": \"20:00:00Z\"}}",
        "{\"default\":\n  {\"days\": [\"Sat\"],\n   \"begin\": \"20:00:00Z\", \"end\": \"\"}}",
        "{\"default\":\n  {\"days\": \"Sat\"}}",
        "{\"default\": {\"days\": [\n1]}}",
        "{\"default\": {\"begin\": \"2026-01-01T25:00:00Z\", \"end\": \"2026-01-01T25:00:00Z\"}}",
        "{\"default\": {\"begin\": \"2026-01-01T01:00:00+24:00\", \"end\": \"\"}}",
        "{\"default\": {\"days\": [\"Sat\"], \"begin\": \"01:00:00Z\", \"end\": \"02:00:00Z\",\n\"timeZone\": \"Europe/Atlantis\"}}",
    ];
    for nowhere in ["Etc/Unknown", "factory"] {
        let text = cases[cases.len() - 1].replace("Europe/Atlantis", nowhere);
        assert!(Policy::parse(&text).unwrap_err().to_string().contains("is no time zone"), "{nowhere}");
    }
    let reported: Vec<_> = cases
        .iter()
        .map(|text| {
            let error = Policy::parse(text).unwrap_err();
            assert!(error.line() <= text.lines().count().max(1), "{text}");
            assert_eq!(error.field().is_some(), matches!(error, PolicyError::Field { .. }));
            error.to_string()
        })
        .collect();
    insta::assert_snapshot!(reported.join("\n"));
}

#[test]
fn a_policy_has_limits() {
    let fault = |text: &str| Policy::parse(text).unwrap_err();
    assert_eq!(fault(&" ".repeat(MAX_POLICY + 1)), PolicyError::TooLarge { size: MAX_POLICY + 1 });
    let list = |n| format!("[{}]", vec!["{}"; n].join(","));
    assert!(Policy::parse(&format!(r#"{{"rules": {}}}"#, list(256))).is_ok());
    assert_eq!(fault(&format!(r#"{{"rules": {}}}"#, list(257))).field(), Some("rules"));
    let windows = fault(&format!(r#"{{"rules": [{{"windows": {}}}]}}"#, list(65)));
    assert_eq!(windows.field(), Some("rules[0].windows"));
    assert!(matches!(fault(&"[".repeat(10_000)), PolicyError::Syntax { .. }));
}

#[test]
fn only_updates_with_downtime_wait_for_a_window() {
    let update = Update { installed: Some("1.0.0"), wanted: "1.1.0", requires_downtime: true, skip: false };
    let fleet = policy(FLEET);
    let outcome = |update: Update<'_>, policy: Option<&Policy>, now: &str| {
        let verdict = judge(&update, policy, &BTreeMap::new(), at(now), MIN_WINDOW);
        assert_eq!(verdict.passes(), verdict.message(&update).is_none());
        (verdict.message(&update).unwrap_or_default(), verdict.recheck_at())
    };
    let closed = "2026-03-03T12:00:00Z";
    for free in [
        Update { installed: None, ..update },
        Update { installed: Some("1.1.0"), ..update },
        Update { requires_downtime: false, ..update },
        Update { skip: true, ..update },
    ] {
        assert_eq!(outcome(free, Some(&fleet), closed), (String::new(), None));
        assert_eq!(outcome(free, None, closed), (String::new(), None));
    }
    assert_eq!(outcome(update, Some(&fleet), "2026-03-04T21:00:00Z"), (String::new(), None));
    let (text, waits_until) = outcome(update, Some(&fleet), closed);
    assert!(
        text.contains("waits for the maintenance window from 2026-03-04T20:00:00Z to 2026-03-05T00:00:00Z"),
        "{text}"
    );
    assert_eq!(waits_until, Some(at("2026-03-04T20:00:00Z")));
    assert!(outcome(update, None, closed).0.contains("no maintenance policy is configured"));
    assert!(outcome(update, Some(&Policy::default()), closed).0.contains("has no window for this runtime"));
}

fn any_policy() -> impl Strategy<Value = (String, BTreeMap<String, String>)> {
    let offset = prop_oneof![
        Just("Z".to_owned()),
        (-12..=14i32, 0..4u8).prop_map(|(h, q)| format!("{h:+03}:{:02}", q * 15))
    ];
    let time = (0..24u8, 0..60u8, offset).prop_map(|(h, m, offset)| format!("{h:02}:{m:02}:00{offset}"));
    let date = (2025..2028i32, 1..13u8, 1..29u8).prop_map(|(y, m, d)| format!("{y}-{m:02}-{d:02}T"));
    let days = proptest::sample::subsequence(vec!["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"], 0..=7);
    let window = (days, date.clone(), time.clone(), date, time).prop_map(|(days, d1, t1, d2, t2)| {
        let (d1, d2) = if days.is_empty() { (d1, d2) } else { Default::default() };
        serde_json::json!({"days": days, "begin": d1 + &t1, "end": d2 + &t2})
    });
    (window.clone(), window.clone(), window, "eu|us", "eu-1|ap-1").prop_map(
        |(one, two, default, pattern, region)| {
            let rules = serde_json::json!([{"match": {"region": pattern}, "windows": [one, two]}]);
            let text = serde_json::json!({"rules": rules, "default": default}).to_string();
            (text, kyma(&[(Field::Region, &region)]))
        },
    )
}

fn any_time() -> impl Strategy<Value = Timestamp> {
    (at("2025-01-01T00:00:00Z").as_second()..at("2028-01-01T00:00:00Z").as_second())
        .prop_map(|s| Timestamp::from_second(s).unwrap())
}

#[test]
fn a_time_zone_keeps_a_windows_local_hours() {
    let window = |day: &str, begin: &str, end: &str, zone: &str| {
        policy(&format!(
            r#"{{"default": {{"days": ["{day}"], "begin": "{begin}", "end": "{end}", "timeZone": "{zone}"}}}}"#
        ))
    };
    let night = window("Sat", "22:00:00+01:00", "04:00:00+01:00", "Europe/Berlin");
    let (york, utc) = ("America/New_York", window("Sat", "22:00:00Z", "04:00:00Z", "UTC"));
    let skipped = window("Sun", "02:30:00-05:00", "05:00:00-05:00", york);
    let twice = window("Sun", "01:30:00-05:00", "03:00:00-05:00", york);
    let in_the_gap = window("Sun", "02:00:00-05:00", "03:00:00-05:00", york);
    for (cause, policy, now, begin, end) in [
        (
            "skipped as a whole: a week later",
            &in_the_gap,
            "2026-03-07T00:00:00Z",
            "2026-03-15T06:00:00Z",
            "2026-03-15T07:00:00Z",
        ),
        ("winter", &night, "2026-01-05T00:00:00Z", "2026-01-10T21:00:00Z", "2026-01-11T03:00:00Z"),
        ("summer", &night, "2026-07-06T00:00:00Z", "2026-07-11T20:00:00Z", "2026-07-12T02:00:00Z"),
        (
            "open past midnight",
            &night,
            "2026-07-12T01:00:00Z",
            "2026-07-11T20:00:00Z",
            "2026-07-12T02:00:00Z",
        ),
        ("to summer", &night, "2026-03-23T00:00:00Z", "2026-03-28T21:00:00Z", "2026-03-29T02:00:00Z"),
        ("to winter", &night, "2026-10-19T00:00:00Z", "2026-10-24T20:00:00Z", "2026-10-25T03:00:00Z"),
        ("no changes", &utc, "2026-10-19T00:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T04:00:00Z"),
        (
            "skipped: an hour later",
            &skipped,
            "2026-03-07T00:00:00Z",
            "2026-03-08T07:30:00Z",
            "2026-03-08T09:00:00Z",
        ),
        ("twice: the first", &twice, "2026-10-31T00:00:00Z", "2026-11-01T05:30:00Z", "2026-11-01T08:00:00Z"),
    ] {
        let found = next(policy, &BTreeMap::new(), at(now), MIN_WINDOW).unwrap();
        assert_eq!((found.begin, found.end), (at(begin), at(end)), "{cause}");
    }
}

fn inside(times: &WindowTimes, now: Timestamp) -> bool {
    match times.when() {
        When::Never => false,
        When::Once { begin, end } => begin <= now && now < end,
        When::Weekly { begin, end } => (0..50 * 60).any(|minutes| {
            let from = now - SignedDuration::from_mins(minutes);
            let present = begin.offset.to_datetime(from);
            if present.hour() != begin.time.hour()
                || present.minute() != begin.time.minute()
                || !times.begins_on(present.weekday())
            {
                return false;
            }
            let from = from - SignedDuration::from_secs(present.second().into());
            // First `end` after the begin.
            let floor = end.offset.to_timestamp(present.date().to_datetime(end.time)).unwrap();
            let mut until = floor;
            while until <= from {
                until += SignedDuration::from_hours(24);
            }
            now < until
        }),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn the_next_window_lies_within_one_of_the_policys((text, labels) in any_policy(), now in any_time(), min in 0..200u64) {
        let (policy, min) = (policy(&text), Duration::from_mins(min));
        let Some(window) = next(&policy, &labels, now, min) else { return Ok(()) };
        prop_assert!(window.begin < window.end);
        prop_assert_eq!(window.open, window.begin <= now);
        let usable = window.end.duration_since(window.begin.max(now));
        prop_assert!(usable > SignedDuration::try_from(min).unwrap());
        let windows = policy.windows_of(&labels).concat();
        prop_assert!(windows.iter().any(|w| inside(w, window.begin)), "{window:?}");
        let last = window.end - SignedDuration::from_secs(1);
        prop_assert!(windows.iter().any(|w| inside(w, last)), "{window:?}");
    }

    #[test]
    fn an_open_window_is_found((text, labels) in any_policy(), now in any_time()) {
        let policy = policy(&text);
        let [rule, _] = policy.windows_of(&labels);
        let is_open = rule.iter().any(|w| inside(w, now));
        if is_open {
            prop_assert!(next(&policy, &labels, now, Duration::ZERO).is_some_and(|w| w.open));
        } else if let Some(window) = next(&policy, &labels, now, Duration::ZERO)
            && window.open
        {
            // All windows of the rule are past.
            prop_assert!(policy.default_window().iter().any(|w| inside(w, now)));
        }
    }

    /// A future window stays next.
    #[test]
    fn the_next_window_is_stable_until_its_begin((text, labels) in any_policy(), now in any_time(), later in 0..20_000i64, min in 0..200u64) {
        let (policy, min) = (policy(&text), Duration::from_mins(min));
        let then = now + SignedDuration::from_mins(later);
        let (Some(a), Some(b)) = (next(&policy, &labels, now, min), next(&policy, &labels, then, min)) else { return Ok(()) };
        prop_assert!(a.begin.max(now) <= b.begin.max(then));
        if then < a.begin {
            prop_assert_eq!((a.begin, a.end), (b.begin, b.end));
        }
        // Once begun, one is open.
        if a.begin <= then && then + SignedDuration::try_from(min).unwrap() < a.end {
            prop_assert!(b.open);
        }
    }

    #[test]
    fn weekly_windows_repeat_every_week((text, labels) in any_policy(), now in any_time(), weeks in 1..60i64) {
        let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let weekly = |w: &serde_json::Value| !w["days"].as_array().unwrap().is_empty();
        value["rules"][0]["windows"].as_array_mut().unwrap().retain(weekly);
        prop_assume!(weekly(&value["default"]));
        let policy = policy(&value.to_string());
        let week = SignedDuration::from_hours(24 * 7 * weeks);
        let (a, b) = (next(&policy, &labels, now, MIN_WINDOW), next(&policy, &labels, now + week, MIN_WINDOW));
        prop_assert_eq!(a.map(|w| (w.begin + week, w.end + week)), b.map(|w| (w.begin, w.end)));
    }

    #[test]
    fn parsing_and_window_search_never_panic(text: String, seconds in Timestamp::MIN.as_second()..Timestamp::MAX.as_second(), min: Duration,
            (available, labels) in any_policy()) {
        let _ = Policy::parse(&text);
        let _ = next(&policy(&available), &labels, Timestamp::from_second(seconds).unwrap(), min);
    }
}
