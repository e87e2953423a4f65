//! Judges facts. Pure.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tidewatch_api::{
    crds,
    names::{CA_SECRET, SERVER_SECRET},
};

use super::{
    definitions,
    facts::{Access, Asked, Certificate, Events, Facts, Kcp, Leader, NoAnswer, Registry, Runtime, Runtimes},
};
use crate::{
    output::seconds,
    rights::{Right, listed},
};

const CONTROL_PLANE: &str = "control plane";
const DEFINITIONS: &str = "definitions";
const RECEIVER: &str = "receiver";
const CERTIFICATES: &str = "certificates";
const REGISTRY: &str = "registry";
const RUNTIMES: &str = "runtimes";

/// Revoked runtimes that a message names.
const NAMED: usize = 5;
const APPLY_CRDS: &str = "kubectl apply --server-side -f deploy/charts/tidewatch/files/crds/";
/// Clocks of this machine and of the leader may differ.
const SKEW: SignedDuration = SignedDuration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Good,
    Warning,
    Failed,
    Skipped,
}

impl Level {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Warning => "warning",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }

    pub(super) const fn symbol(self) -> &'static str {
        match self {
            Self::Good => "√",
            Self::Warning => "‼",
            Self::Failed => "×",
            Self::Skipped => "-",
        }
    }

    pub(super) const fn mark(self) -> &'static str {
        match self {
            Self::Good => "[ok]",
            Self::Warning => "[warn]",
            Self::Failed => "[fail]",
            Self::Skipped => "[skip]",
        }
    }
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) group: &'static str,
    pub(super) check: String,
    pub(super) level: Level,
    pub(super) message: String,
    /// The next step; empty if none is needed.
    pub(super) remedy: String,
}

impl Finding {
    pub(super) fn new(
        group: &'static str,
        check: impl Into<String>,
        level: Level,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { group, check: check.into(), level, message: message.into(), remedy: remedy.into() }
    }

    pub(super) fn good(group: &'static str, check: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(group, check, Level::Good, message, "")
    }

    /// A question that found no answer. The check fails also for want of a right of this command's user.
    fn unanswered(group: &'static str, check: impl Into<String>, why: &NoAnswer) -> Self {
        let remedy = if why.forbidden {
            "run doctor as a user with this right"
        } else {
            "check KCP's API server, and run doctor again"
        };
        Self::new(group, check, Level::Failed, format!("not checked: {}", why.message), remedy)
    }

    pub(super) fn has_failed(&self) -> bool {
        self.level == Level::Failed
    }
}

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let check = "its API server answers";
    let version = match &facts.version {
        Ok(version) => Finding::good(CONTROL_PLANE, check, version),
        Err(why) => {
            let remedy = "check the network, and name another kubeconfig with --kubeconfig";
            Finding::new(CONTROL_PLANE, check, Level::Failed, &why.message, remedy)
        }
    };
    let mut findings = vec![version];
    if let Some(kcp) = &facts.kcp {
        findings.extend(kcp.definitions.iter().map(|(name, installed)| definition(name, installed)));
        findings.extend(receiver(facts, kcp));
        for (secret, certificate) in &kcp.certificates {
            findings.push(self::certificate(facts.now, secret, certificate));
        }
        findings.extend(rotation(kcp));
        findings.push(revoked(&kcp.revoked));
        findings.push(registry(&kcp.registry));
        findings.extend(runtimes(facts.now, &facts.namespace, &kcp.runtimes));
    }
    findings
}

fn definition(name: &str, installed: &Asked<Option<Value>>) -> Finding {
    let installed = match installed {
        Ok(Some(installed)) => installed,
        Ok(None) => return Finding::new(DEFINITIONS, name, Level::Failed, "it is not installed", APPLY_CRDS),
        Err(why) => return Finding::unanswered(DEFINITIONS, name, why),
    };
    let expected = crds::all().into_iter().find(|one| one.metadata.name.as_deref() == Some(name));
    let expected = serde_json::to_value(expected).unwrap_or_default();
    match definitions::problem(&expected, installed) {
        None => Finding::good(DEFINITIONS, name, "v1beta2"),
        Some(problem) if problem.starts_with("it is older") => {
            Finding::new(DEFINITIONS, name, Level::Warning, problem, APPLY_CRDS)
        }
        Some(problem) => Finding::new(DEFINITIONS, name, Level::Failed, problem, APPLY_CRDS),
    }
}

fn receiver(facts: &Facts, kcp: &Kcp) -> Vec<Finding> {
    let namespace = &facts.namespace;
    let role = "deploy/charts/tidewatch/files/rbac/receiver.yaml";
    let remedy = format!("apply {role} for the namespace {namespace}, or helm upgrade with rbac.create=true");
    let rights =
        |check: &str, missing: &Asked<Vec<Right>>, level: Level, remedy: &str| match (missing, &kcp.user) {
            (Err(why), _) => Finding::unanswered(RECEIVER, check, why),
            (Ok(_), None) => {
                let message = "no Deployment tidewatch-receiver names a user";
                Finding::new(RECEIVER, check, Level::Skipped, message, "name it with --receiver-user")
            }
            (Ok(missing), Some(user)) if missing.is_empty() => Finding::good(RECEIVER, check, user),
            (Ok(missing), Some(user)) => {
                let message = format!("{user} may not {}", listed(missing));
                Finding::new(RECEIVER, check, level, message, remedy)
            }
        };
    let files = format!("{remedy}; not needed with certificates in files or of cert-manager");
    let paused = match &kcp.paused {
        Ok(false) => Finding::good(RECEIVER, "not paused", ""),
        Ok(true) => {
            let resume = format!("kubectl -n {namespace} delete configmap tidewatch-engine");
            Finding::new(
                RECEIVER,
                "not paused",
                Level::Warning,
                "an operator has paused all writes to runtimes",
                resume,
            )
        }
        Err(why) => Finding::unanswered(RECEIVER, "not paused", why),
    };
    vec![
        rights("rights in KCP", &kcp.missing_rights, Level::Failed, &remedy),
        rights("rights to keep its certificates", &kcp.missing_certificate_rights, Level::Warning, &files),
        leader(facts.now, namespace, &kcp.lease),
        paused,
    ]
}

fn leader(now: Timestamp, namespace: &str, lease: &Asked<Option<Leader>>) -> Finding {
    const CHECK: &str = "a leader holds the Lease";
    let start = format!("start a receiver for the namespace {namespace}; kubectl -n {namespace} get pods");
    let failed = |message: String| Finding::new(RECEIVER, CHECK, Level::Failed, message, &start);
    let leader = match lease {
        Ok(Some(leader)) => leader,
        Ok(None) => return failed("there is no Lease: no receiver has ever worked here".to_owned()),
        Err(why) => return Finding::unanswered(RECEIVER, CHECK, why),
    };
    let holder = &leader.holder;
    if holder.is_empty() {
        return failed("the last leader has released it".to_owned());
    }
    let age = leader.renewed.map(|at| now.duration_since(at));
    match age {
        Some(age) if age <= SignedDuration::from_secs(leader.seconds) + SKEW => {
            Finding::good(RECEIVER, CHECK, format!("{holder}, renewed {} s ago", age.as_secs().max(0)))
        }
        Some(age) => failed(format!("{holder} has not renewed it for {} s", age.as_secs())),
        None => failed(format!("{holder} has never renewed it")),
    }
}

fn certificate(now: Timestamp, secret: &'static str, certificate: &Certificate) -> Finding {
    let check = format!("Secret {secret}");
    let validity = match certificate {
        Ok(Some(Ok(validity))) => validity,
        Ok(Some(Err(cause))) => {
            let remedy =
                format!("delete the Secret {secret}; the receiver makes another one at its next start");
            return Finding::new(CERTIFICATES, check, Level::Failed, cause, remedy);
        }
        Ok(None) => {
            let message = "there is none: the receiver has certificates in files, or has never started";
            return Finding::new(CERTIFICATES, check, Level::Skipped, message, "");
        }
        Err(why) => return Finding::unanswered(CERTIFICATES, check, why),
    };
    let end = format!("until {}", validity.not_after);
    let left = validity.not_after.duration_since(now);
    let life = validity.not_after.duration_since(validity.not_before);
    let remedy = match secret {
        CA_SECRET => {
            "the receiver rotates it at two thirds of its life: tidewatch certs status, and the log of the leader"
        }
        SERVER_SECRET => "the receiver renews it at two thirds of its life: read the log of the leader",
        _ => "renew it",
    };
    if left <= SignedDuration::ZERO {
        Finding::new(CERTIFICATES, check, Level::Failed, format!("expired at {}", validity.not_after), remedy)
    } else if left < warned_before(secret, life) {
        Finding::new(CERTIFICATES, check, Level::Warning, end, remedy)
    } else {
        Finding::good(CERTIFICATES, check, end)
    }
}

/// The receiver renews its certificate, and rotates the CA, with a third of the life left. cert-manager renews the CA with a quarter left.
fn warned_before(secret: &str, life: SignedDuration) -> SignedDuration {
    if secret == CA_SECRET { life / 5 } else { life * 3 / 10 }
}

/// The rotation of the CA, if there is one.
fn rotation(kcp: &Kcp) -> Option<Finding> {
    let ca = kcp.certificates.iter().find(|(secret, _)| *secret == CA_SECRET);
    ca.filter(|(_, certificate)| matches!(certificate, Ok(Some(_))))?;
    let message = match &kcp.rotation {
        Some((step, since)) => {
            format!("{step} since {}; tidewatch certs status names the runtimes that lag", seconds(since))
        }
        None => "none is under way".to_owned(),
    };
    Some(Finding::good(CERTIFICATES, "rotation of the CA", message))
}

fn revoked(revoked: &Asked<BTreeMap<String, String>>) -> Finding {
    const CHECK: &str = "revoked runtimes";
    match revoked {
        Ok(revoked) if revoked.is_empty() => Finding::good(CERTIFICATES, CHECK, "none"),
        Ok(revoked) => {
            let named: Vec<_> = revoked.keys().take(NAMED).map(String::as_str).collect();
            let more = revoked.len().saturating_sub(NAMED);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let remedy = "accept one again: tidewatch certs admit RUNTIME";
            Finding::new(CERTIFICATES, CHECK, Level::Warning, format!("{}{more}", named.join(", ")), remedy)
        }
        Err(why) => Finding::unanswered(CERTIFICATES, CHECK, why),
    }
}

fn registry(registry: &Registry) -> Finding {
    const CHECK: &str = "the registry of the modules answers";
    match registry {
        Registry::Unknown => {
            let remedy = "name it with --registry";
            let message = "no Deployment tidewatch-receiver names one";
            Finding::new(REGISTRY, CHECK, Level::Skipped, message, remedy)
        }
        Registry::Unreadable(why) => Finding::unanswered(REGISTRY, CHECK, why),
        Registry::Answered { address, code: 200 | 401 } => Finding::good(REGISTRY, CHECK, address),
        Registry::Answered { address, code } => {
            let message = format!("{address} answers {code}");
            Finding::new(
                REGISTRY,
                CHECK,
                Level::Failed,
                message,
                "check the address; a registry answers 200 or 401 at /v2/",
            )
        }
        Registry::Silent { address, cause } => {
            let message = format!("{address}: {cause}");
            Finding::new(
                REGISTRY,
                CHECK,
                Level::Failed,
                message,
                "check address, network and certificate from this machine",
            )
        }
    }
}

fn runtimes(now: Timestamp, namespace: &str, runtimes: &Asked<Runtimes>) -> Vec<Finding> {
    let Runtimes { checked, more, unknown } = match runtimes {
        Ok(runtimes) => runtimes,
        Err(why) => return vec![Finding::unanswered(RUNTIMES, "the Kymas can be listed", why)],
    };
    let mut findings: Vec<_> = checked.iter().flat_map(|one| runtime(now, namespace, one)).collect();
    if let Some(name) = unknown {
        let remedy =
            format!("kubectl -n {namespace} get kymas; register it with: tidewatch runtime add {name}");
        let message = "no Kyma has this name or runtime id";
        findings.push(Finding::new(RUNTIMES, name.as_str(), Level::Failed, message, remedy));
    } else if checked.is_empty() && *more == 0 {
        let message = "there is no Kyma yet";
        let remedy = "register a runtime: tidewatch runtime add NAME --kubeconfig FILE";
        findings.push(Finding::new(RUNTIMES, "registered runtimes", Level::Skipped, message, remedy));
    }
    if *more > 0 {
        let message = format!("{more} more runtimes are not checked");
        findings.push(Finding::new(
            RUNTIMES,
            "registered runtimes",
            Level::Skipped,
            message,
            "--runtimes COUNT, or --runtime RUNTIME",
        ));
    }
    findings
}

fn runtime(now: Timestamp, namespace: &str, runtime: &Runtime) -> Vec<Finding> {
    let Runtime { kyma, id, .. } = runtime;
    if runtime.is_skipped {
        let message = "left alone: its Kyma has the label operator.kyma-project.io/skip-reconciliation";
        return vec![Finding::new(RUNTIMES, kyma.as_str(), Level::Skipped, message, "")];
    }
    let again = format!("tidewatch runtime add {kyma} --kubeconfig FILE");
    let mut findings = Vec::new();
    if id.is_none() || !runtime.has_domain {
        let message = "the Kyma lacks the label kyma-project.io/runtime-id or the annotation skr-domain";
        findings.push(Finding::new(RUNTIMES, format!("{kyma}: identity"), Level::Failed, message, &again));
    }
    findings.extend(access(now, namespace, kyma, &runtime.access));
    findings.push(events(runtime));
    findings
}

fn access(now: Timestamp, namespace: &str, kyma: &str, access: &Access) -> Vec<Finding> {
    let check = format!("{kyma}: access");
    let again = format!("tidewatch runtime add {kyma} --kubeconfig FILE");
    let failed = |message: String, remedy: String| {
        vec![Finding::new(RUNTIMES, check.clone(), Level::Failed, message, remedy)]
    };
    match access {
        Access::NoSecret => failed("it has no kubeconfig Secret".to_owned(), again),
        Access::Several(names) => failed(
            format!("it has several kubeconfig Secrets: {}", names.join(", ")),
            format!("keep one, and delete the others: kubectl -n {namespace} delete secret NAME"),
        ),
        Access::Refused { secret, cause } => failed(format!("Secret {secret}: {cause}"), again),
        Access::Unauthorized { secret } => {
            failed(format!("the runtime refuses the credentials in Secret {secret} (401)"), again)
        }
        Access::Silent { cause } => failed(
            format!("its API server does not answer from this machine: {cause}"),
            "check that the runtime is not hibernated, and that its address is reachable from KCP".to_owned(),
        ),
        Access::Works { missing, certificate_ends } => {
            let mut findings = vec![if missing.is_empty() {
                Finding::good(
                    RUNTIMES,
                    check.clone(),
                    "its API server answers, and grants the engine's rights",
                )
            } else {
                let message = format!("the engine may not {}; modules that need this fail", listed(missing));
                Finding::new(RUNTIMES, check.clone(), Level::Warning, message, again)
            }];
            if let Some(end) = certificate_ends.filter(|end| *end <= now) {
                let message = format!("the agent's certificate has expired at {end}");
                let remedy =
                    "read its log in the runtime: kubectl -n kyma-system logs deployment/tidewatch-agent";
                findings.push(Finding::new(
                    RUNTIMES,
                    format!("{kyma}: certificate"),
                    Level::Failed,
                    message,
                    remedy,
                ));
            }
            findings
        }
    }
}

fn events(runtime: &Runtime) -> Finding {
    let check = format!("{}: events", runtime.kyma);
    let name = runtime.id.as_deref().unwrap_or(&runtime.kyma);
    if let Some(since) = &runtime.revoked_since {
        let message = format!("its agent is refused: revoked since {}", seconds(since));
        let remedy = format!("tidewatch certs admit {name}");
        return Finding::new(RUNTIMES, check, Level::Warning, message, remedy);
    }
    let Some(Events { proven, reason, message }) = &runtime.events else {
        if runtime.has_status {
            let message = "not judged yet";
            return Finding::new(RUNTIMES, check, Level::Warning, message, "run doctor again in a minute");
        }
        let message = "no receiver has seen the Kyma";
        return Finding::new(RUNTIMES, check, Level::Failed, message, "see the checks of the receiver");
    };
    if *proven {
        return Finding::good(RUNTIMES, check, "proven to arrive");
    }
    let (level, remedy) = match reason.as_str() {
        // A hibernated runtime is no problem.
        "Unreachable" => (Level::Warning, "start the runtime, if it is hibernated".to_owned()),
        "NoAgent" => (
            Level::Failed,
            "set the receiver's --agent-url and --agent-image; in the runtime: kubectl -n kyma-system get pods".to_owned(),
        ),
        "NoCanary" => (
            Level::Failed,
            "in the runtime: kubectl -n kyma-system logs deployment/tidewatch-agent".to_owned(),
        ),
        "AgentRefused" => (
            Level::Failed,
            format!("tidewatch explain {name}; docs/operate/troubleshooting.md#refused-agents"),
        ),
        _ => (Level::Failed, format!("tidewatch explain {name}")),
    };
    Finding::new(RUNTIMES, check, level, format!("{reason}: {message}"), remedy)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tidewatch_certs::Validity;

    use super::*;

    const DAY: i64 = 24 * 3600;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn no_answer(forbidden: bool) -> NoAnswer {
        NoAnswer { forbidden, message: "why".into() }
    }

    /// Asserts level, and parts of message and remedy. Failures and warnings have a remedy.
    fn is(finding: &Finding, level: Level, message: &str, remedy: &str) {
        assert_eq!(finding.level, level, "{finding:?}");
        assert!(finding.message.contains(message) && finding.remedy.contains(remedy), "{finding:?}");
        assert!(matches!(level, Level::Good | Level::Skipped) || !finding.remedy.is_empty(), "{finding:?}");
    }

    #[test]
    fn each_state_of_the_lease_has_its_finding() {
        let leader_at = |lease: Asked<Option<Leader>>| leader(at(100), "n", &lease);
        let of = |leader: Option<Leader>| leader_at(Ok(leader));
        let held = |renewed: i64| Leader { holder: "pod_1".into(), renewed: Some(at(renewed)), seconds: 15 };
        is(&of(Some(held(95))), Level::Good, "pod_1, renewed 5 s ago", "");
        is(&of(Some(held(103))), Level::Good, "renewed 0 s ago", "");
        is(&of(Some(held(70))), Level::Failed, "pod_1 has not renewed it for 30 s", "start a receiver");
        is(&of(Some(Leader::default())), Level::Failed, "released", "kubectl -n n get pods");
        is(&of(Some(Leader { renewed: None, ..held(0) })), Level::Failed, "never renewed", "start");
        is(&of(None), Level::Failed, "no receiver has ever worked", "start");
        is(&leader_at(Err(no_answer(true))), Level::Failed, "not checked: why", "as a user");
        is(&leader_at(Err(no_answer(false))), Level::Failed, "why", "run doctor again");
    }

    #[test]
    fn each_state_of_a_certificate_has_its_finding() {
        let valid = |end: i64| Ok(Some(Ok(Validity { not_before: at(0), not_after: at(end * DAY) })));
        let of = |secret, now: i64, fact| certificate(at(now * DAY), secret, &fact);
        is(&of(SERVER_SECRET, 19, valid(30)), Level::Good, "until 1970-01-31", "");
        is(&of(SERVER_SECRET, 20, valid(30)), Level::Good, "", "");
        is(&of(SERVER_SECRET, 22, valid(30)), Level::Warning, "until", "log of the leader");
        is(&of(CA_SECRET, 22, valid(30)), Level::Good, "until", "");
        is(&of(CA_SECRET, 28, valid(30)), Level::Warning, "until", "certs status");
        is(&of(CA_SECRET, 30, valid(30)), Level::Failed, "expired", "certs status");
        is(&of(CA_SECRET, 0, Ok(Some(Err("no PEM".into())))), Level::Failed, "no PEM", "delete the Secret");
        is(&of(CA_SECRET, 0, Ok(None)), Level::Skipped, "in files", "");
    }

    #[test]
    fn each_state_of_the_registry_has_its_finding() {
        let answered = |code| Registry::Answered { address: "https://r".into(), code };
        is(&registry(&answered(200)), Level::Good, "https://r", "");
        is(&registry(&answered(401)), Level::Good, "", "");
        is(&registry(&answered(404)), Level::Failed, "https://r answers 404", "/v2/");
        let silent = Registry::Silent { address: "https://r".into(), cause: "refused".into() };
        is(&registry(&silent), Level::Failed, "https://r: refused", "network");
        is(&registry(&Registry::Unknown), Level::Skipped, "", "--registry");
        is(&registry(&Registry::Unreadable(no_answer(true))), Level::Failed, "not checked: why", "as a user");
    }

    #[test]
    fn each_state_of_an_access_has_its_finding() {
        let right =
            || Right::of_rules(&json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]), "");
        let of = |access: Access| self::access(at(10), "n", "k", &access);
        let works = |missing, certificate_ends| Access::Works { missing, certificate_ends };
        for (state, level, message, remedy) in [
            (works(Vec::new(), Some(at(11))), Level::Good, "grants the engine's rights", ""),
            (works(right(), None), Level::Warning, "may not get pods", "runtime add k"),
            (Access::NoSecret, Level::Failed, "no kubeconfig Secret", "runtime add k"),
            (
                Access::Several(vec!["a".into(), "b".into()]),
                Level::Failed,
                "a, b",
                "kubectl -n n delete secret",
            ),
            (
                Access::Refused { secret: "s".into(), cause: "exec".into() },
                Level::Failed,
                "Secret s: exec",
                "runtime add",
            ),
            (Access::Unauthorized { secret: "s".into() }, Level::Failed, "(401)", "runtime add k"),
            (Access::Silent { cause: "timeout".into() }, Level::Failed, "timeout", "hibernated"),
        ] {
            let findings = of(state);
            is(&findings[0], level, message, remedy);
            assert_eq!(findings.len(), 1);
        }
        is(
            &of(works(Vec::new(), Some(at(10))))[1],
            Level::Failed,
            "expired",
            "logs deployment/tidewatch-agent",
        );
    }

    fn harbour(events: Option<(bool, &str)>) -> Runtime {
        let (events, access) = (
            events.map(|(proven, reason)| Events { proven, reason: reason.into(), message: "m".into() }),
            Access::Works { missing: Vec::new(), certificate_ends: None },
        );
        let (kyma, id) = ("harbour".to_owned(), Some("r-1".to_owned()));
        Runtime {
            kyma,
            id,
            has_domain: true,
            is_skipped: false,
            has_status: true,
            revoked_since: None,
            events,
            access,
        }
    }

    #[test]
    fn each_state_of_an_event_path_has_its_finding() {
        for (state, level, message, remedy) in [
            (Some((true, "Proven")), Level::Good, "proven", ""),
            (Some((false, "Unreachable")), Level::Warning, "Unreachable: m", "hibernated"),
            (Some((false, "NoAgent")), Level::Failed, "NoAgent: m", "--agent-url"),
            (Some((false, "NoCanary")), Level::Failed, "NoCanary", "kubectl -n kyma-system logs"),
            (Some((false, "AgentRefused")), Level::Failed, "AgentRefused", "explain r-1"),
            (Some((false, "BlindWatch")), Level::Failed, "BlindWatch", "explain r-1"),
            (None, Level::Warning, "not judged yet", "in a minute"),
        ] {
            is(&events(&harbour(state)), level, message, remedy);
        }
        let revoked = Runtime { revoked_since: Some("T".into()), ..harbour(Some((true, "Proven"))) };
        is(&events(&revoked), Level::Warning, "revoked since T", "tidewatch certs admit r-1");
        let unseen = Runtime { has_status: false, ..harbour(None) };
        is(&events(&unseen), Level::Failed, "no receiver has seen", "checks of the receiver");
    }

    #[test]
    fn a_runtime_without_identity_fails_and_a_skipped_one_is_not_judged() {
        let proven = Some((true, "Proven"));
        let anonymous = Runtime { id: None, ..harbour(proven) };
        is(
            &runtime(at(0), "n", &anonymous)[0],
            Level::Failed,
            "kyma-project.io/runtime-id",
            "runtime add harbour",
        );
        assert_eq!(runtime(at(0), "n", &harbour(proven)).len(), 2);
        let skipped = runtime(at(0), "n", &Runtime { is_skipped: true, ..harbour(None) });
        is(&skipped[0], Level::Skipped, "skip-reconciliation", "");
        assert_eq!(skipped.len(), 1);
    }

    #[test]
    fn unchecked_and_unknown_runtimes_are_named() {
        let of = |checked, more, unknown: Option<&str>| {
            let unknown = unknown.map(str::to_owned);
            runtimes(at(0), "n", &Ok(Runtimes { checked, more, unknown }))
        };
        is(&of(vec![harbour(None)], 7, None)[2], Level::Skipped, "7 more runtimes", "--runtimes");
        is(&of(Vec::new(), 0, Some("x"))[0], Level::Failed, "no Kyma has this name", "runtime add x");
        is(&of(Vec::new(), 0, None)[0], Level::Skipped, "no Kyma yet", "tidewatch runtime add");
        is(&runtimes(at(0), "n", &Err(no_answer(true)))[0], Level::Failed, "not checked: why", "as a user");
    }

    #[test]
    fn missing_definitions_and_rights_are_found() {
        let name = "kymas.operator.kyma-project.io";
        is(&definition(name, &Ok(None)), Level::Failed, "not installed", "kubectl apply");
        is(&definition(name, &Ok(Some(json!({})))), Level::Failed, "not established", "kubectl apply");
        let expected = crds::all().into_iter().find(|one| one.metadata.name.as_deref() == Some(name));
        let mut installed = serde_json::to_value(expected).unwrap();
        installed["status"] = json!({"conditions": [{"type": "Established", "status": "True"}]});
        is(&definition(name, &Ok(Some(installed.clone()))), Level::Good, "v1beta2", "");
        installed["spec"]["versions"][0]["schema"] = json!({});
        is(
            &definition(name, &Ok(Some(installed))),
            Level::Warning,
            "older than this tidewatch",
            "kubectl apply",
        );

        let right =
            Right::of_rules(&json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]), "n");
        let facts = facts(right);
        let all = findings(&facts);
        let of = |check: &str| all.iter().find(|finding| finding.check == check).unwrap();
        is(of("rights in KCP"), Level::Failed, "u may not get pods", "receiver.yaml");
        is(
            of("rights to keep its certificates"),
            Level::Warning,
            "u may not",
            "not needed with certificates in files",
        );
        is(of("not paused"), Level::Warning, "paused", "delete configmap tidewatch-engine");
        is(of("revoked runtimes"), Level::Warning, "r-0, r-1, r-2, r-3, r-4 and 1 more", "certs admit");
        is(of("rotation of the CA"), Level::Good, "publishing since 2026-01-01T00:00:00Z", "");
        let silent = Facts { version: Err(no_answer(false)), kcp: None, ..facts };
        let silent = findings(&silent);
        is(&silent[0], Level::Failed, "why", "--kubeconfig");
        assert_eq!(silent.len(), 1);

        let mut unnamed = self::facts(Vec::new());
        unnamed.kcp.as_mut().unwrap().user = None;
        let all = findings(&unnamed);
        let rights = all.iter().filter(|finding| finding.check.starts_with("rights"));
        rights.for_each(|finding| is(finding, Level::Skipped, "no Deployment", "--receiver-user"));
    }

    fn facts(missing: Vec<Right>) -> Facts {
        let kcp = Kcp {
            definitions: Vec::new(),
            user: Some("u".into()),
            missing_rights: Ok(missing.clone()),
            missing_certificate_rights: Ok(missing),
            lease: Ok(None),
            paused: Ok(true),
            certificates: vec![(CA_SECRET, Ok(Some(Err(String::new()))))],
            rotation: Some(("publishing".into(), "2026-01-01T00:00:00.5Z".into())),
            revoked: Ok((0..6).map(|n| (format!("r-{n}"), String::new())).collect()),
            registry: Registry::Unknown,
            runtimes: Ok(Runtimes { checked: Vec::new(), more: 0, unknown: None }),
        };
        Facts { now: at(0), namespace: "n".into(), version: Ok("v1.36.0".into()), kcp: Some(kcp) }
    }
}
