use tidewatch_api::Module;

use super::*;
use crate::versions::Fault;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn keep(message: &str, retry_at: Option<Timestamp>) -> GateDecision {
    GateDecision::Keep { state: State::Processing, message: message.into(), maintenance: true, retry_at }
}

fn requested(gates: &[Judge]) -> (GateDecision, Notes) {
    let resolved_module = ResolvedModule {
        entry: Module { name: "lighthouse".into(), ..Module::default() },
        channel: "regular".into(),
        release: None,
        outcome: Err(Fault::UnknownModule { module: "lighthouse".into() }),
    };
    let (kyma, wanted, facts) = (Kyma::default(), KymaSpec::default(), Facts::default());
    let view = View {
        module: &resolved_module,
        installed: None,
        kyma: &kyma,
        wanted: &wanted,
        facts: &facts,
        now: at(0),
    };
    let mut notes = Notes::default();
    let gate = first(gates, &view, &mut notes);
    (gate, notes)
}

#[test]
fn the_first_objecting_gate_decides() {
    let pass: Judge = |_, _| GateDecision::Pass;
    let window: Judge = |_, _| keep("window", Some(at(50)));
    let later: Judge = |_, notes| {
        notes.recheck(at(10));
        GateDecision::Remove { message: "no access".into() }
    };
    assert_eq!(requested(&[pass, pass]), (GateDecision::Pass, Notes::default()));
    let (gate, notes) = requested(&[pass, window, later]);
    assert_eq!(
        (gate, notes.recheck_at),
        (keep("window", Some(at(50))), Some(at(50))),
        "the third is not asked"
    );
    let (gate, _) = requested(&[pass, later, window]);
    assert_eq!(gate, GateDecision::Remove { message: "no access".into() });
}

#[test]
fn the_earliest_recheck_wins() {
    let deprecated: Judge = |_, notes| {
        notes.recheck(at(70));
        GateDecision::Pass
    };
    let window: Judge = |_, _| keep("window", Some(at(50)));
    assert_eq!(requested(&[deprecated, window]).1.recheck_at, Some(at(50)));
    let late: Judge = |_, _| keep("window", Some(at(90)));
    assert_eq!(requested(&[deprecated, late]).1.recheck_at, Some(at(70)));
}

#[test]
fn an_installed_restricted_module_stays_without_a_release_meta() {
    let mut resolved_module = ResolvedModule {
        entry: Module { name: "lighthouse".into(), ..Module::default() },
        channel: "regular".into(),
        release: None,
        outcome: Err(Fault::UnknownModule { module: "lighthouse".into() }),
    };
    let listed = ["lighthouse".to_owned()];
    let (kyma, wanted, facts) =
        (Kyma::default(), KymaSpec::default(), Facts { restricted: &listed, ..Facts::default() });
    let installed = Manifest::default();
    let judge = |resolved_module: &ResolvedModule, installed: Option<&Manifest>| {
        let view = View {
            module: resolved_module,
            installed,
            kyma: &kyma,
            wanted: &wanted,
            facts: &facts,
            now: at(0),
        };
        access::judge(&view, &mut Notes::default())
    };
    assert_eq!(judge(&resolved_module, Some(&installed)), GateDecision::Pass);
    assert_eq!(
        judge(&resolved_module, None),
        GateDecision::Pass,
        "what is wrong is told by who looks for a version"
    );
    // A release that selects no Kyma removes access.
    resolved_module.release = Some(Arc::default());
    assert!(matches!(judge(&resolved_module, Some(&installed)), GateDecision::Remove { .. }));
}
