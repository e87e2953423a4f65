use std::time::Duration;

use super::*;

fn wrong(text: &str) -> String {
    Scenario::parse("my.yaml", text).unwrap_err().to_string()
}

#[test]
fn all_shipped_scenarios_parse_and_have_a_description() {
    for (name, text) in SHIPPED {
        let scenario = Scenario::parse(name, text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(scenario.name, name);
        assert!(!scenario.about.is_empty(), "{name}");
        assert!(matches!(scenario.steps.last(), Some(Step::Settle(_))), "{name} ends with settle");
    }
}

#[test]
fn every_kind_of_step_parses() {
    let text = "name: mine
enrolment: true
steps:
- ready: {within: 5m}
- wait: 1.5s
- enrol: {runtimes: 50%, rate: 20/s}
- change: {what: drift, runtimes: 3}
- bump: {modules: 2, channel: fast}
- receiver: {do: kill, down: 250ms, meanwhile: {what: delete, runtimes: 2}}
- proven: {within: 2m}
- idle: {within: 1m}
- rotate: {within: 10m, meanwhile: {what: toggle, runtimes: 4}}
- agents: {do: restart, runtimes: 10%}
- partition: {runtimes: 30%, group: region, cut: centre, for: 1h}
- fault: {kind: tooManyRequests, share: 50%, whose: agents, time: 3s, for: 1m}
- registry: {latency: 2s, refuse: 503, retryAfter: 20s, for: 10s}
- settle: {within: 60s}
";
    let scenario = Scenario::parse("my.yaml", text).unwrap();
    assert_eq!(scenario.start, Share::all());
    assert_eq!(scenario.steps.len(), 14);
    assert_eq!(scenario.steps[1], Step::Wait(Time(Duration::from_millis(1500))));
    assert!(scenario.steps[5].needs_ours() && !scenario.steps[3].needs_ours());
    assert_eq!(scenario.steps[3].words(), "drift in 3 at once");
    assert_eq!(scenario.steps[5].words(), "receiver: kill, down for 250ms; meanwhile delete in 2 at once");
    let rotation = scenario.steps[8].words();
    assert_eq!(rotation, "rotation of the CA (at most 600s); meanwhile toggle in 4 at once");
    let fault = scenario.steps[11].words();
    assert!(fault.starts_with("tooManyRequests at ") && fault.contains("50% of the calls"), "{fault}");
}

#[test]
fn an_error_names_line_field_and_allowed_values() {
    let head = "name: mine\nsteps:\n";
    for (step, line, words) in [
        ("- explode: {}", 3, &["explode", "ready", "partition"][..]),
        ("- wait: 5 parsecs", 3, &["5 parsecs", "250ms, 30s, 5m or 1h"]),
        ("- change: {what: drift, runtimes: 120%}", 3, &["120%", "0% to 100%"]),
        ("- change: {what: vanish, runtimes: 1}", 3, &["vanish", "drift", "toggle"]),
        ("- change: {what: drift, runtimes: 1, rat: 5/s}", 3, &["rat", "rate"]),
        ("- enrol: {runtimes: 1, rate: fast}", 3, &["fast", "5/s"]),
        ("- ready: {}", 3, &["within"]),
        ("- ready: {within: 1s}\n- fault: {kind: gone, for: 1}", 4, &["'1' is no time"]),
        ("- bump: {modules: 0}", 3, &["at least 1"]),
        ("- registry: {refuse: 200, for: 1s}", 3, &["200 is no refusal", "400 to 599"]),
        ("- change: {what: drift, runtimes: 0}", 3, &["nobody", "more than 0%"]),
        ("- fault: {kind: gone, runtimes: 0%, for: 1s}", 3, &["nobody"]),
        (
            "- wait: 1s\n- fault: {kind: neverReady, at: kcp, for: 1s}",
            4,
            &["at: stuckNamespace and neverReady are for runtimes"],
        ),
        ("- wait: 1s\ngoal: {times: -1}", 4, &["-1", "1 to 1000"]),
        ("- wait: 1s\nname: another", 4, &["'name' is here twice"]),
        ("- ready: {within: 1s}\n  wait: 1s", 4, &["a step does one thing"]),
        ("- wait: 1s\n- bump: {modules: -1}", 4, &["a whole number is missing"]),
        ("- bump: 1", 3, &["fields are missing here", "{within: 5m}"]),
        ("- wait: [1s]", 3, &["a word or a number is missing here"]),
    ] {
        let message = wrong(&format!("{head}{step}\n"));
        assert!(message.starts_with(&format!("my.yaml:{line}:")), "{message}");
        assert!(words.iter().all(|word| message.contains(word)), "{words:?}: {message}");
    }
    assert_eq!(position_of(b""), (1, 1));
    assert_eq!(position_of("name: ä\nst".as_bytes()), (2, 3), "of characters, not of bytes");
    for (text, place, words) in [
        ("name: x\n---\nname: y\nsteps: []\n", "1:1", "'steps' is missing"),
        ("", "1:1", "a scenario has a name and steps"),
        ("name: x\nsteps: {}\n", "2:8", "a list is missing here"),
        ("name: [x]\nsteps: []\n", "1:7", "a word is missing here"),
    ] {
        let message = wrong(text);
        assert!(message.starts_with(&format!("my.yaml:{place}: ")) && message.contains(words), "{message}");
        let again = place.replace(':', " column ");
        assert!(!message.contains(&again), "the place is said once: {message}");
    }
    let none = wrong("name: mine\nsteps: []\n");
    assert!(none.starts_with("my.yaml:2:") && none.contains("1 to 1000 steps"), "{none}");
}

#[test]
fn a_rotation_needs_agents_that_enrol() {
    let message = wrong("name: mine\nsteps:\n- rotate: {within: 5m}\n");
    assert!(message.contains("'rotate' needs 'enrolment: true'"), "{message}");
}

#[test]
fn a_bump_cannot_exceed_the_number_of_modules() {
    let text = "name: mine\nsteps:\n- bump: {modules: 1}\n- bump: {modules: 3}\n";
    let scenario = Scenario::parse("my.yaml", text).unwrap();
    assert!(scenario.fits(3).is_ok());
    let message = scenario.fits(2).unwrap_err().to_string();
    assert!(message.contains("--modules 3"), "{message}");
}

#[test]
fn an_unknown_scenario_lists_the_known_ones() {
    let message = Scenario::load("no-such-thing").unwrap_err().to_string();
    assert!(message.contains("channel-bump") && message.contains("enrolment"), "{message}");
}

#[test]
fn shares_are_rounded_up_and_never_more_than_all() {
    assert_eq!(Share::Part(0.0).of(100), 0);
    assert_eq!(Share::Part(0.001).of(100), 1);
    assert_eq!(Share::Part(0.3).of(1000), 300);
    assert_eq!(Share::Count(7).of(5), 5);
}
