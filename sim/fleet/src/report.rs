//! The report of a run.

mod document;

use serde::Serialize;

use self::document::{Document, time};
use crate::{metrics::percentile, oracle::Verdict, scenario::Goal};

/// The report.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Settings of the run.
    #[serde(flatten)]
    pub setup: RunSetup,
    /// Steps with times.
    pub steps: Vec<StepReport>,
    /// Times from change to desired state.
    pub lags: Vec<Lag>,
    /// Effect of a fault elsewhere.
    pub beside: Option<Beside>,
    /// The last rotation of the CA.
    pub rotation: Option<Rotation>,
    /// Requests refused by the registry.
    pub registry_refused: usize,
    /// Phases, separated by `ready` steps.
    pub phases: Vec<Phase>,
    /// Agents.
    pub agents: AgentsReport,
    /// Peak memory of this process, in MiB.
    pub simulator_peak_mib: f64,
    /// Changes that could not be made.
    pub skipped: usize,
    /// Changes unfinished at the end.
    pub unfinished: usize,
    /// Final comparison.
    pub verdict: Verdict,
}

/// Settings of a run, and its machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunSetup {
    /// Scenario.
    pub scenario: String,
    /// Purpose.
    pub about: String,
    /// Seed.
    pub seed: u64,
    /// Runtimes.
    pub runtimes: usize,
    /// Modules per runtime.
    pub modules: usize,
    /// Objects per module.
    pub objects: usize,
    /// Cores, shared by all processes.
    pub cores: usize,
    /// Load average over 15 minutes. Far above `cores`, other programs interfere.
    pub load: Option<f64>,
    /// Non-default flags; empty for another controller.
    pub receiver_flags: String,
    /// Whether the build is optimized.
    pub optimized: bool,
}

/// A played step.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StepReport {
    /// Step.
    #[serde(rename = "what")]
    pub step: String,
    /// Duration.
    pub seconds: f64,
    /// Result.
    pub note: String,
}

/// Seconds from change to desired state.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Lag {
    /// Cause.
    pub after: String,
    /// Count.
    pub count: usize,
    /// Median.
    pub p50: f32,
    /// 95th percentile.
    pub p95: f32,
    /// 99th percentile.
    pub p99: f32,
    /// Maximum.
    pub max: f32,
}

impl Lag {
    /// Percentiles of unsorted times.
    pub fn of(after: &str, mut seconds: Vec<f32>) -> Self {
        seconds.sort_by(f32::total_cmp);
        let at = |share| percentile(&seconds, share).unwrap_or_default();
        Self {
            after: after.to_owned(),
            count: seconds.len(),
            p50: at(0.5),
            p95: at(0.95),
            p99: at(0.99),
            max: at(1.0),
        }
    }
}

/// Changes in runtimes without the fault.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Beside {
    /// p99 without the fault, in seconds.
    pub without_p99: f32,
    /// p99 beside it, in seconds.
    pub beside_p99: f32,
    /// Goal, in seconds.
    pub at_most: Option<f32>,
}

impl Beside {
    /// Compares two lags with a goal.
    pub fn of(without: &Lag, beside: &Lag, goal: Option<Goal>) -> Self {
        let at_most = goal.map(|goal| without.p99 * goal.times + goal.plus.0.as_secs_f32());
        Self { without_p99: without.p99, beside_p99: beside.p99, at_most }
    }

    /// Whether the goal is met.
    pub fn is_met(&self) -> bool {
        self.at_most.is_none_or(|at_most| self.beside_p99 <= at_most)
    }

    fn words(&self) -> String {
        let seconds = |seconds: f32| time(f64::from(seconds));
        let goal = self.at_most.map_or_else(String::new, |at_most| {
            let met = if self.is_met() { "met" } else { "MISSED" };
            format!("; goal: at most {}, {met}", seconds(at_most))
        });
        format!(
            "Changes in runtimes that the fault does not hit, p99: {} without it, {} beside it{goal}.",
            seconds(self.without_p99),
            seconds(self.beside_p99)
        )
    }
}

/// A rotation of the CA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rotation {
    /// Seconds until all agents trusted the next CA.
    pub trusted_seconds: f64,
    /// Seconds until the replaced CA was gone.
    pub seconds: f64,
    /// Failed requests and connections of agents meanwhile.
    pub failures: u64,
}

impl Rotation {
    fn words(&self) -> String {
        let Self { trusted_seconds, seconds, failures } = self;
        let (trusted, gone) = (time(*trusted_seconds), time(*seconds));
        format!(
            "Rotation of the CA: all agents trusted the next after {trusted}, the replaced one was gone after {gone}; {failures} requests and connections of agents failed."
        )
    }
}

/// A phase of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Phase {
    /// Name.
    pub name: String,
    /// Duration.
    pub seconds: f64,
    /// Finished reconciles.
    pub reconciles: f64,
    /// Failed reconciles.
    pub reconciles_failed: f64,
    /// Most reconciles in a second.
    pub reconciles_peak: f64,
    /// Seconds in the queue: p50, p95, p99 (from buckets).
    pub queue_age: [Option<f64>; 3],
    /// Most waiting keys.
    pub queue_peak: f64,
    /// CPU seconds of the receiver.
    pub receiver_cpu_seconds: f64,
    /// Peak memory of the receiver so far, in MiB.
    pub receiver_peak_mib: f64,
    /// Final memory of the receiver, in MiB.
    pub receiver_end_mib: f64,
    /// Calls to API servers.
    pub calls: Vec<Calls>,
}

/// Calls to API servers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Calls {
    /// `runtimes` or `kcp`.
    pub at: String,
    /// Program.
    #[serde(rename = "who")]
    pub client: String,
    /// Verb.
    pub verb: String,
    /// Count.
    pub calls: u64,
    /// Per runtime.
    pub per_runtime: f64,
}

/// The agents.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentsReport {
    /// Peak number of connected agents.
    pub connected: usize,
    /// Failed requests and connections.
    pub failures: u64,
    /// CPU seconds of the process.
    pub cpu_seconds: f64,
    /// Peak memory of the process, in MiB.
    pub peak_mib: f64,
}

impl Report {
    /// Whether nothing is lost, unfinished or not Ready.
    pub fn is_clean(&self) -> bool {
        self.verdict.lost == 0 && self.unfinished == 0 && self.verdict.not_ready == 0
    }

    /// Result and reason, in a line.
    pub fn outcome(&self) -> String {
        let Verdict { compared, lost, not_ready, .. } = &self.verdict;
        if self.is_clean() {
            let missed = self.beside.as_ref().is_some_and(|beside| !beside.is_met());
            let but = if missed { "; but the goal for changes beside the fault was missed" } else { "" };
            return format!(
                "PASSED: all {compared} objects are as they should be, every change is done, and every Kyma in KCP is Ready{but}"
            );
        }
        let wrong = [
            (*lost, format!("of {compared} objects are not as they should be")),
            (self.unfinished, "changes are not done".to_owned()),
            (*not_ready, "Kymas in KCP are not Ready".to_owned()),
        ];
        let wrong: Vec<_> = wrong
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, step)| format!("{count} {step}"))
            .collect();
        format!("FAILED: {}", wrong.join(", "))
    }

    /// Returns JSON.
    pub fn json(&self) -> String {
        let mut report = serde_json::to_value(self).unwrap_or_default();
        report["passed"] = self.is_clean().into();
        report["outcome"] = self.outcome().into();
        format!("{report:#}")
    }

    /// Returns Markdown or aligned text.
    pub fn text(&self, markdown: bool) -> String {
        let mut out = Document { markdown, text: String::new() };
        self.header(&mut out);
        self.results(&mut out);
        self.phases(&mut out);
        self.other_processes(&mut out);
        let rows: Vec<_> = self
            .steps
            .iter()
            .map(|step| vec![step.step.clone(), time(step.seconds), step.note.clone()])
            .collect();
        out.table(&["step", "took", ""], &rows);
        out.line(&self.outcome());
        out.text
    }

    fn header(&self, out: &mut Document) {
        let RunSetup { scenario, about, runtimes, modules, objects, seed, cores, .. } = &self.setup;
        let of_each = format!("{modules} modules of {objects} objects each");
        out.heading(&format!("{scenario}: {runtimes} runtimes, {of_each}, seed {seed}"));
        let build = if self.setup.optimized { "" } else { " A debug build: its times say nothing." };
        let load = self
            .setup
            .load
            .map_or_else(String::new, |load| format!(" (load average of the last 15 min: {load:.1})"));
        let stop = if about.is_empty() || about.ends_with(['.', '!', '?']) { "" } else { "." };
        out.line(format!("{about}{stop} Everything shares {cores} cores{load}.{build}").trim_start());
        if !self.setup.receiver_flags.is_empty() {
            out.line(&format!("Receiver: {}", self.setup.receiver_flags));
        }
    }

    fn results(&self, out: &mut Document) {
        let Verdict { compared, lost, not_ready, examples } = &self.verdict;
        let rows = vec![
            vec!["lost".into(), lost.to_string(), format!("of {compared} objects compared at the end")],
            vec!["unfinished".into(), self.unfinished.to_string(), "changes not done at the end".into()],
            vec!["not Ready".into(), not_ready.to_string(), "Kymas in KCP".into()],
            vec!["skipped".into(), self.skipped.to_string(), "changes that could not be made".into()],
        ];
        out.table(&["result", "", ""], &rows);
        let rows: Vec<_> = examples
            .iter()
            .map(|lost| vec![lost.runtime.clone(), lost.object.clone(), lost.is.to_owned()])
            .collect();
        out.table(&["lost in", "object", "is"], &rows);
        let rows: Vec<_> = self
            .lags
            .iter()
            .map(|lag| {
                let ms = [lag.p50, lag.p95, lag.p99, lag.max].map(|seconds| time(f64::from(seconds)));
                [lag.after.clone(), lag.count.to_string()].into_iter().chain(ms).collect()
            })
            .collect();
        out.table(&["from change to as desired, after", "count", "p50", "p95", "p99", "max"], &rows);
        if let Some(beside) = &self.beside {
            out.line(&beside.words());
        }
        if let Some(rotation) = &self.rotation {
            out.line(&rotation.words());
        }
        if self.registry_refused > 0 {
            out.line(&format!("The registry of modules has refused {} requests.", self.registry_refused));
        }
    }

    fn other_processes(&self, out: &mut Document) {
        let AgentsReport { connected, failures, cpu_seconds, peak_mib } = &self.agents;
        let rows = vec![
            vec![
                "agents (one process)".into(),
                format!("{connected} connected, {failures} failures"),
                format!("{cpu_seconds:.0} s"),
                format!("{peak_mib:.0} MiB"),
            ],
            vec![
                "API servers, registry, oracle".into(),
                String::new(),
                String::new(),
                format!("{:.0} MiB", self.simulator_peak_mib),
            ],
        ];
        out.table(&["besides the receiver", "", "CPU", "memory, peak"], &rows);
    }

    fn phases(&self, out: &mut Document) {
        let head: Vec<&str> =
            std::iter::once("receiver").chain(self.phases.iter().map(|p| p.name.as_str())).collect();
        let row = |name: &str, value: &dyn Fn(&Phase) -> String| {
            std::iter::once(name.to_owned()).chain(self.phases.iter().map(value)).collect::<Vec<_>>()
        };
        let age = |index: usize| move |p: &Phase| p.queue_age[index].map_or_else(|| "-".to_owned(), time);
        let mut rows = vec![row("duration", &|p| time(p.seconds))];
        // Another controller is not measured.
        if !self.setup.receiver_flags.is_empty() {
            rows.extend([
                row("reconciles", &|p| format!("{:.0}", p.reconciles)),
                row("of these failed, tried again", &|p| format!("{:.0}", p.reconciles_failed)),
                row("reconciles in a second", &|p| format!("{:.0}", p.reconciles / p.seconds.max(0.001))),
                row("reconciles in a second, peak", &|p| format!("{:.0}", p.reconciles_peak)),
                row("age in the queue, p50", &age(0)),
                row("age in the queue, p95", &age(1)),
                row("age in the queue, p99", &age(2)),
                row("keys waiting, peak", &|p| format!("{:.0}", p.queue_peak)),
                row("CPU time", &|p| format!("{:.1} s", p.receiver_cpu_seconds)),
                row("CPU, share of one core", &|p| {
                    format!("{:.0}%", 100.0 * p.receiver_cpu_seconds / p.seconds.max(0.001))
                }),
                row("CPU for each reconcile", &|p| time(p.receiver_cpu_seconds / p.reconciles.max(1.0))),
                row("memory, peak so far", &|p| format!("{:.0} MiB", p.receiver_peak_mib)),
                row("memory at the end", &|p| format!("{:.0} MiB", p.receiver_end_mib)),
            ]);
        }
        out.table(&head, &rows);
        for phase in &self.phases {
            let rows: Vec<_> = phase
                .calls
                .iter()
                .map(|c| {
                    vec![
                        c.at.clone(),
                        c.client.clone(),
                        c.verb.clone(),
                        c.calls.to_string(),
                        format!("{:.1}", c.per_runtime),
                    ]
                })
                .collect();
            out.table(&[&format!("calls, {}", phase.name), "who", "verb", "calls", "per runtime"], &rows);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::LostObject;

    fn report() -> Report {
        let lost =
            LostObject { runtime: "sim-00001".into(), object: "a/b deployments".into(), is: "missing" };
        Report {
            setup: RunSetup {
                scenario: "storm".into(),
                receiver_flags: "--fallback-poll 0".into(),
                runtimes: 5,
                modules: 2,
                objects: 4,
                seed: 7,
                ..RunSetup::default()
            },
            lags: vec![Lag::of("drift", vec![0.5, 0.25, 2.0])],
            phases: vec![Phase {
                name: "scenario".into(),
                seconds: 2.0,
                reconciles: 10.0,
                queue_age: [Some(0.004), None, None],
                ..Phase::default()
            }],
            verdict: Verdict { compared: 50, lost: 1, examples: vec![lost], not_ready: 0 },
            ..Report::default()
        }
    }

    #[test]
    fn a_document_has_tables_and_a_terminal_has_columns() {
        let text = report().text(true);
        assert!(text.starts_with("### storm: 5 runtimes, 2 modules of 4 objects each, seed 7"), "{text}");
        assert!(text.contains("| lost | 1 | of 50 objects compared at the end |"), "{text}");
        assert!(text.contains("| drift | 3 | 500 ms | 2.0 s | 2.0 s | 2.0 s |"), "{text}");
        assert!(text.contains("| age in the queue, p50 | 4.0 ms |"), "{text}");
        let text = report().text(false);
        assert!(text.contains("lost        1") && !text.contains('|'), "{text}");
    }

    #[test]
    fn a_faults_effect_is_compared_with_its_goal() {
        let lag = |p99| Lag { p99, ..Lag::default() };
        let goal =
            Some(Goal { times: 1.5, plus: crate::scenario::Time(std::time::Duration::from_millis(500)) });
        let met = Beside::of(&lag(1.0), &lag(2.0), goal);
        let missed = Beside::of(&lag(1.0), &lag(2.1), goal);
        assert!(met.is_met() && !missed.is_met() && Beside::of(&lag(1.0), &lag(9.0), None).is_met());
        let text = Report { beside: Some(missed), ..report() }.text(true);
        assert!(
            text.contains("p99: 1.0 s without it, 2.1 s beside it; goal: at most 2.0 s, MISSED."),
            "{text}"
        );
    }

    #[test]
    fn lost_or_unfinished_changes_make_the_report_unclean() {
        assert!(!report().is_clean());
        assert!(!Report { unfinished: 1, ..Report::default() }.is_clean());
        let verdict = Verdict { not_ready: 1, ..Verdict::default() };
        assert!(!Report { verdict, ..Report::default() }.is_clean());
        assert!(Report::default().is_clean());
    }

    #[test]
    fn the_last_line_gives_the_verdict_and_its_cause() {
        let last = |report: &Report| report.text(false).trim_end().lines().last().map(str::to_owned);
        let failed = Report { unfinished: 2, ..report() };
        let why = "FAILED: 1 of 50 objects are not as they should be, 2 changes are not done";
        assert_eq!(last(&failed).as_deref(), Some(why));
        let passed = Report { verdict: Verdict { compared: 9, ..Verdict::default() }, ..report() };
        let why = "PASSED: all 9 objects are as they should be, every change is done, and every Kyma in KCP is Ready";
        assert_eq!(last(&passed).as_deref(), Some(why));
        let value: serde_json::Value = serde_json::from_str(&failed.json()).unwrap();
        assert_eq!((&value["passed"], &value["outcome"]), (&false.into(), &failed.outcome().into()));
    }

    #[test]
    fn an_external_controller_has_no_cpu_row() {
        let text = Report { setup: RunSetup::default(), ..report() }.text(true);
        assert!(text.contains("| duration | 2.0 s |") && !text.contains("CPU time"), "{text}");
        assert!(report().text(true).contains("| CPU time |"));
    }

    #[test]
    fn the_json_report_has_the_same_figures() {
        let value: serde_json::Value = serde_json::from_str(&report().json()).unwrap();
        assert_eq!(value["verdict"]["lost"], 1);
        assert_eq!(value["lags"][0]["count"], 3);
    }
}
