//! The command line.

use std::{ffi::OsString, net::SocketAddr, path::PathBuf, time::Duration};

use clap::{CommandFactory, FromArgMatches, Parser, error::ErrorKind};
use tidewatch_oci::BaseUrl;
use tidewatch_telemetry::logging::Format;

use crate::{
    agent_args::{AgentArgs, FileArgs},
    dry_run::Output,
    leader_endpoint::LeaderServiceArgs,
    lease::DURATIONS,
    limits::LimitArgs,
    paths::Settings,
};

/// Verifies events of runtime agents, and installs, upgrades, repairs and removes modules in their clusters.
#[derive(Clone, Debug, Parser)]
#[command(name = "tidewatch-receiver", version, about, long_about = None)]
pub struct Program {
    /// Settings of a working receiver.
    #[command(flatten)]
    pub args: Args,
    /// Settings of a dry run.
    #[command(flatten)]
    pub dry: DryRunArgs,
}

impl Program {
    /// Parses this process's arguments; exits with a message on an error or for help.
    #[must_use]
    pub fn read() -> Self {
        Self::of(std::env::args_os()).unwrap_or_else(|error| error.exit())
    }

    fn of(args: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Self, clap::Error> {
        let mut command = Self::command();
        let mut matches = command.try_get_matches_from_mut(args)?;
        let program = Self::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))?;
        let serves = !program.dry.dry_run;
        match program.args.unusable(serves) {
            Some(why) => Err(command.error(ErrorKind::ValueValidation, why)),
            None => Ok(program),
        }
    }
}

/// Options of a receiver with agents, which a single cluster has not.
const FOR_AGENTS: [&str; 17] = [
    "listen",
    "client_ca",
    "tls_cert",
    "tls_key",
    "trusted_proxy",
    "agent_url",
    "agent_image",
    "agent_proxy",
    "agent_user",
    "server_name",
    "agent_certificate_lifetime",
    "server_certificate_lifetime",
    "ca_certificate_lifetime",
    "ca_rotation_patience",
    "certificates",
    "leader_service",
    "route_address",
];

/// Settings of a receiver; also of programs that contain one.
#[derive(Clone, Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub struct Args {
    /// Manage the cluster in which the receiver runs, and no other: the one Kyma in --namespace needs no
    /// kubeconfig Secret. There are no agents, and no port for them.
    #[arg(long, conflicts_with_all = FOR_AGENTS)]
    pub single_cluster: bool,
    /// Address of the event port for agents (mTLS).
    #[arg(long, env = "TIDEWATCH_LISTEN", default_value = "0.0.0.0:8443", value_name = "ADDRESS")]
    pub listen: SocketAddr,
    /// Address of metrics, probes and pages for operators. It has no TLS: do not expose it.
    #[arg(long, env = "TIDEWATCH_ADMIN", default_value = "127.0.0.1:8080", value_name = "ADDRESS")]
    pub admin: SocketAddr,
    /// Certificates in files.
    #[command(flatten)]
    pub files: FileArgs,
    /// Agents and certificates.
    #[command(flatten)]
    pub agents: AgentArgs,
    /// Leaf certificates (PEM) of proxies that terminate TLS in front of the event port. Only their header
    /// X-Forwarded-Client-Cert is trusted.
    #[arg(long, env = "TIDEWATCH_TRUSTED_PROXY", value_name = "FILE", requires = "client_ca")]
    pub trusted_proxy: Option<PathBuf>,
    /// Kubeconfig of the control plane [default: the in-cluster configuration].
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of Kymas, Manifests and kubeconfig Secrets in the control plane.
    #[arg(long, default_value = tidewatch_api::names::KCP_NAMESPACE)]
    pub namespace: String,
    /// OCI registry of the modules' components.
    #[arg(long, env = "TIDEWATCH_MODULES", value_name = "HOST[:PORT][/PATH]")]
    pub modules: String,
    /// Registry of external modules (repeatable). A ModuleTemplate selects it as the last repository context
    /// of its descriptor; all other components are read from --modules.
    #[arg(long, value_name = "HOST[:PORT][/PATH]", value_parser = registry_address)]
    pub external_registry: Vec<String>,
    /// Registry that may be used without TLS (repeatable). Loopback addresses need no permission.
    #[arg(long, value_name = "HOST[:PORT]")]
    pub insecure_registry: Vec<String>,
    /// Docker configuration file with credentials of these registries, such as a mounted Secret's
    /// `.dockerconfigjson`; it is read again when it changes. Other registries, and sources in a runtime's own
    /// templates, are read anonymously.
    #[arg(long, env = "TIDEWATCH_REGISTRY_CREDENTIALS", value_name = "FILE")]
    pub registry_credentials: Option<PathBuf>,
    /// Folder for the cache of module layers. Without it, layers are in memory only and are downloaded again
    /// after a restart.
    #[arg(long, env = "TIDEWATCH_CACHE_DIR", value_name = "FOLDER")]
    pub cache_dir: Option<PathBuf>,
    /// Size limit of --cache-dir, in MiB. The oldest layers are deleted first.
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1024 * 1024))]
    pub cache_size: u64,
    /// Server that kubeconfigs must not name: a network, an address, `host` or `host:port` (repeatable). The
    /// control plane's own address is always denied.
    #[arg(long, value_name = "RULE")]
    pub deny_server: Vec<String>,
    /// Address of a manager's service, in place of the address in its Watcher (repeatable).
    #[arg(long, value_name = "MANAGER=HOST:PORT", value_parser = route_address)]
    pub route_address: Vec<(String, String)>,
    /// Concurrent reconciles.
    #[arg(long, default_value = "16", value_parser = workers, value_name = "NUMBER")]
    pub workers: usize,
    /// Concurrent reconciles of one runtime.
    #[arg(long, default_value = "2", value_parser = workers, value_name = "NUMBER")]
    pub workers_per_runtime: usize,
    /// Settings of the event path.
    #[command(flatten)]
    pub paths: PathArgs,
    /// User that may watch the agent's kinds in every runtime, besides the agent's service account
    /// (repeatable). Use it for agents outside their runtime.
    #[arg(long, value_name = "NAME")]
    pub agent_user: Vec<String>,
    /// Identity of this process in the Lease, usually the pod's name [default: the host name]. A Lease with
    /// the same identity is taken over at once, because its process has ended.
    #[arg(long, env = "TIDEWATCH_IDENTITY", value_name = "NAME")]
    pub identity: Option<String>,
    /// The agents' way to the leader.
    #[command(flatten)]
    pub leader_service: LeaderServiceArgs,
    /// Time without a renewal until another receiver or the Go manager takes over the Lease, in seconds (15
    /// to 180). A receiver that cannot reach the control plane for two thirds of it exits.
    #[arg(long, default_value = "15", value_parser = lease_seconds, value_name = "SECONDS")]
    pub lease: Duration,
    /// Write nothing to runtimes and acknowledge no event; KCP is still watched. The ConfigMap
    /// 'tidewatch-engine' with paused: "true" does the same without a restart.
    #[arg(long)]
    pub pause: bool,
    /// Keep the Go manager's watcher in runtimes with a proven event path (`docs/operate/takeover.md`).
    #[arg(long)]
    pub keep_watcher: bool,
    /// Modules for Kymas that the kymaSelector of the ModuleReleaseMeta selects, and for no other Kymas
    /// (comma-separated).
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = listed_name)]
    pub restricted_default_modules: Vec<String>,
    /// Image pull Secret in the control plane's namespace. It is copied to the namespace kyma-system of every
    /// runtime and added to the workloads of modules.
    #[arg(long, env = "TIDEWATCH_SKR_IMAGE_PULL_SECRET", value_name = "NAME")]
    pub skr_image_pull_secret: Option<String>,
    /// Whether the state Error or Warning of a default custom resource sets its module to Warning.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub module_cr_state: bool,
    /// Export the state of each Kyma and module under the Go lifecycle manager's metric names
    /// (`docs/reference/metrics.md`): 5 series per Kyma, 6 per module.
    #[arg(long)]
    pub object_metrics: bool,
    /// Settings of rollouts and maintenance windows.
    #[command(flatten)]
    pub updates: UpdateArgs,
    /// Limits on agents.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Time that a shutdown waits for running work, in seconds.
    #[arg(long, default_value = "25", value_parser = seconds, value_name = "SECONDS")]
    pub grace: Duration,
    /// Format of log lines: json or text.
    #[arg(long, env = "TIDEWATCH_LOG_FORMAT", default_value = "json", value_parser = format_of)]
    pub log_format: Format,
    /// Log level, or targets with levels [default: info; warn in a dry run].
    #[arg(long, env = "TIDEWATCH_LOG", value_name = "LEVELS")]
    pub log_level: Option<String>,
    /// Base URL of the OpenTelemetry collector that receives spans by OTLP over HTTP, as a rule with port 4318 (default: none are
    /// exported).
    #[cfg(feature = "otlp")]
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
}

impl Args {
    /// Returns an error that involves several arguments: `--modules` may use HTTP only if `--insecure-registry` lists it; a receiver that
    /// serves agents needs certificates or the names for one.
    fn unusable(&self, serves: bool) -> Option<String> {
        let is_nameless = self.files.client_ca.is_none() && self.agents.pki().server_names.is_empty();
        if serves && is_nameless && !self.single_cluster {
            let names =
                "give --agent-url or --server-name: the receiver's certificate needs a name that agents dial";
            return Some(format!(
                "{names}; or give --client-ca, --tls-cert and --tls-key; or --single-cluster for the receiver's own cluster alone"
            ));
        }
        let base = BaseUrl::parse(&self.modules, &self.insecure_registry);
        base.err().map(|error| format!("--modules cannot be used: {error}"))
    }
}

/// A dry run lists the changes that a receiver would make (`docs/operate/takeover.md`).
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct DryRunArgs {
    /// List the changes that this receiver would make, and exit. Nothing is written, no Lease is taken and no
    /// port is opened. Exit code 0: only changes that a take-over expects; 3: other changes; 4: not
    /// everything could be examined.
    #[arg(long)]
    pub dry_run: bool,
    /// Output format of a dry run.
    #[arg(long, short, value_enum, default_value_t, requires = "dry_run", value_name = "FORMAT")]
    pub output: Output,
    /// Maximum duration of a dry run, in seconds.
    #[arg(long, default_value = "3600", value_parser = seconds, requires = "dry_run", value_name = "SECONDS")]
    pub dry_run_limit: Duration,
}

/// Rollouts and maintenance windows (`docs/operate/maintenance-windows.md`).
#[derive(Clone, Debug, clap::Args)]
pub struct UpdateArgs {
    /// Policy of maintenance windows (JSON), checked for changes every 5 s. Without it, an update with a
    /// downtime waits unless the runtime's user skips windows.
    #[arg(long, env = "TIDEWATCH_MAINTENANCE_POLICY", value_name = "FILE")]
    pub maintenance_policy: Option<PathBuf>,
    /// Minimum remaining time of a maintenance window for an update to start, in seconds.
    #[arg(long, default_value = "1200", value_parser = seconds, value_name = "SECONDS")]
    pub min_maintenance_window: Duration,
    /// Time over which a change of the catalog or of a policy is spread over the affected runtimes, in
    /// seconds; 0 updates all at once. User changes are not delayed.
    #[arg(long, default_value = "300", value_parser = seconds, value_name = "SECONDS")]
    pub rollout_window: Duration,
    /// Time that a module may wait for required modules and APIs before it is in Warning, in seconds.
    #[arg(long, default_value = "900", value_parser = seconds, value_name = "SECONDS")]
    pub dependency_patience: Duration,
}

/// Proof of a runtime's event path, and polling without proof (`docs/concepts/delivery.md`).
#[derive(Clone, Debug, clap::Args)]
pub struct PathArgs {
    /// Maximum age of the last returned canary of a proven runtime, in seconds. Agents send one canary a
    /// minute.
    #[arg(long, default_value = "75", value_parser = seconds, value_name = "SECONDS")]
    pub proven_for: Duration,
    /// Time that a new runtime, or any runtime after a start, may be unknown before it is polled, in seconds.
    #[arg(long, default_value = "180", value_parser = seconds, value_name = "SECONDS")]
    pub unknown_grace: Duration,
    /// Interval between polls of an unproven runtime, in seconds; 0 disables them.
    #[arg(long, default_value = "120", value_parser = seconds, value_name = "SECONDS")]
    pub fallback_poll: Duration,
    /// Interval between safety resyncs of a proven runtime, in seconds; 0 disables them.
    #[arg(long, default_value = "43200", value_parser = seconds, value_name = "SECONDS")]
    pub safety_resync: Duration,
    /// Interval between polls of a silent runtime that does not answer (hibernated, cut off or deleted), in
    /// seconds; 0 disables them.
    #[arg(long, default_value = "3600", value_parser = seconds, value_name = "SECONDS")]
    pub unreachable_poll: Duration,
    /// Share of unproven runtimes, in percent. Above it, and from --ill-at-least runtimes on, the event path
    /// itself counts as failing.
    #[arg(long, default_value = "10", value_parser = percent, value_name = "PERCENT")]
    pub ill_share: f64,
    /// Number of unproven runtimes from which the event path itself can count as failing (see --ill-share).
    #[arg(long, default_value_t = 20, value_name = "RUNTIMES")]
    pub ill_at_least: usize,
    /// Factor by which poll intervals grow while the event path itself counts as failing.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000), value_name = "TIMES")]
    pub ill_stretch: u32,
}

impl From<PathArgs> for Settings {
    fn from(args: PathArgs) -> Self {
        Self {
            proven_for: args.proven_for,
            grace: args.unknown_grace,
            poll: args.fallback_poll,
            poll_unreachable: args.unreachable_poll,
            resync: args.safety_resync,
            ill_share: args.ill_share / 100.0,
            ill_at_least: args.ill_at_least,
            ill_stretch: args.ill_stretch,
        }
    }
}

fn route_address(text: &str) -> Result<(String, String), String> {
    let parsed = text.split_once('=').and_then(|(manager, address)| {
        let (host, port) = address.rsplit_once(':')?;
        let good = !manager.is_empty() && !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0);
        good.then(|| (manager.to_owned(), address.to_owned()))
    });
    parsed.ok_or_else(|| "use MANAGER=HOST:PORT".to_owned())
}

/// Parses a registry as a ModuleTemplate spells it. They are compared as text, so another spelling would never match.
fn registry_address(text: &str) -> Result<String, String> {
    let (host, path) = text.split_once('/').unwrap_or((text, "-"));
    let (name, port) = host.split_once(':').unwrap_or((host, "443"));
    let good = !name.is_empty()
        && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-'))
        && port.parse::<u16>().is_ok_and(|port| port > 0)
        && path.split('/').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_graphic()));
    good.then(|| text.to_owned()).ok_or_else(|| {
        "use HOST[:PORT][/PATH] in lower case, without scheme and without a slash at the end".to_owned()
    })
}

/// Parses one trimmed name of a list.
fn listed_name(text: &str) -> Result<String, String> {
    let name = text.trim();
    let is_named = !name.is_empty();
    is_named
        .then(|| name.to_owned())
        .ok_or_else(|| "a name is empty; use NAME or NAME,NAME, or leave the flag out".to_owned())
}

fn workers(text: &str) -> Result<usize, String> {
    let parsed = text.parse().ok().filter(|count| (1..=1024).contains(count));
    parsed.ok_or_else(|| "use a number from 1 to 1024".to_owned())
}

fn seconds(text: &str) -> Result<Duration, std::num::ParseIntError> {
    text.parse().map(Duration::from_secs)
}

fn lease_seconds(text: &str) -> Result<Duration, String> {
    let parsed = text.parse().ok().filter(|seconds| DURATIONS.contains(seconds));
    parsed
        .map(Duration::from_secs)
        .ok_or_else(|| format!("use a number from {} to {}", DURATIONS.start(), DURATIONS.end()))
}

fn percent(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=100.0).contains(share));
    share.ok_or_else(|| "use a number from 0 to 100".to_owned())
}

fn format_of(text: &str) -> Result<Format, String> {
    text.parse().map_err(|_| "use json or text".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Only {
        #[command(flatten)]
        paths: PathArgs,
    }

    fn parse(args: &[&str]) -> Result<Settings, clap::Error> {
        use clap::Parser as _;
        Only::try_parse_from([&["receiver"], args].concat()).map(|only| only.paths.into())
    }

    #[test]
    fn an_external_registry_must_be_host_and_path() {
        for good in ["ghcr.example", "guests.example:5000/kyma", "127.0.0.1:5000/a/b", "localhost"] {
            assert_eq!(registry_address(good), Ok(good.to_owned()));
        }
        let bad = [
            "",
            "https://ghcr.example",
            "ghcr.example/",
            "GHCR.example",
            "a:b",
            "a:0",
            "a b",
            "/kyma",
            "a//b",
            "a/b c",
        ];
        for bad in bad {
            assert!(registry_address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_dry_run_needs_no_listener_certificates() {
        let modules = ["tidewatch-receiver", "--modules", "registry.example.com"];
        let look = Program::of([&modules[..], &["--dry-run"]].concat()).unwrap();
        assert!(look.dry.dry_run && look.args.modules == "registry.example.com");
        let error = Program::of(modules).unwrap_err().to_string();
        for flag in ["--agent-url", "--server-name", "--client-ca", "--tls-cert", "--tls-key"] {
            assert!(error.contains(flag), "{error}");
        }
        let files = ["--client-ca", "ca.pem", "--tls-cert", "tls.pem", "--tls-key", "key.pem"];
        let serves = Program::of([&modules[..], &files].concat()).unwrap();
        assert!(!serves.dry.dry_run && serves.args.files.client_ca.is_some());
        assert!(Program::of([&modules[..], &["--server-name", "events.example"]].concat()).is_ok());
    }

    #[test]
    fn a_single_cluster_needs_no_certificates_and_refuses_options_for_agents() {
        let single = ["tidewatch-receiver", "--modules", "registry.example.com", "--single-cluster"];
        let config = crate::Config::from(Program::of(single).unwrap().args);
        assert!(config.engine.single_cluster && config.tls.is_none() && config.engine.agents.is_none());
        for flags in [
            &["--agent-url", "https://a:1"][..],
            &["--client-ca", "ca.pem", "--tls-cert", "tls.pem", "--tls-key", "key.pem"],
            &["--listen", "0.0.0.0:8443"],
            &["--agent-user", "u"],
        ] {
            let error = Program::of([&single[..], flags].concat()).unwrap_err().to_string();
            assert!(error.contains("--single-cluster") && error.contains(flags[0]), "{error}");
        }
    }

    fn look(args: &[&str]) -> Result<Program, clap::Error> {
        Program::of([&["tidewatch-receiver", "--dry-run"], args].concat())
    }

    #[test]
    fn an_unusable_module_registry_is_an_option_error() {
        for good in ["registry.example.com/modules", "http://localhost:5000", "https://ghcr.example/a"] {
            assert!(look(&["--modules", good]).is_ok(), "{good}");
        }
        for (bad, why) in [
            ("http://x y", "registry address is not valid: it must be host[:port]"),
            ("", "registry address is not valid: it must be host[:port]"),
            ("ghcr.example/UPPER", "repository is not valid"),
            ("ftp://ghcr.example", "only http and https are known"),
            ("http://ghcr.example", "list it as insecure"),
        ] {
            let error = look(&["--modules", bad]).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("--modules cannot be used: ") && text.contains(why), "{bad}: {text}");
            assert_eq!(error.exit_code(), 2, "{bad}");
        }
        let listed = ["--modules", "http://ghcr.example", "--insecure-registry", "ghcr.example"];
        assert!(look(&listed).is_ok());
    }

    /// A pod with an unknown flag never starts.
    #[test]
    fn flags_of_the_chart_exist() {
        let command = Program::command();
        let known: Vec<&str> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
        let schema = include_str!("../../deploy/charts/tidewatch/values.schema.json");
        let schema: serde_json::Value = serde_json::from_str(schema).unwrap();
        let settable = schema["properties"]["flags"]["properties"].as_object().unwrap().keys();
        let template = include_str!("../../deploy/charts/tidewatch/templates/_receiver.tpl");
        let fixed = template
            .split("--")
            .skip(1)
            .filter_map(|rest| rest.split(|c: char| !c.is_ascii_lowercase() && c != '-').next())
            .filter(|flag| !flag.is_empty());
        for flag in settable.map(String::as_str).chain(fixed) {
            assert!(known.contains(&flag), "the chart uses --{flag}");
        }
    }

    #[test]
    fn list_options_are_trimmed_and_reject_empty_names() {
        let names = |list: &str| {
            let program = look(&["--modules", "ghcr.example", "--restricted-default-modules", list]);
            program.map(|program| program.args.restricted_default_modules)
        };
        assert_eq!(names("x, raft ,y").unwrap(), ["x", "raft", "y"]);
        for wrong in ["", " ", "x,", "x,,y", "x, ,y"] {
            let error = names(wrong).unwrap_err().to_string();
            assert!(error.contains("a name is empty"), "{wrong:?}: {error}");
        }
    }

    #[test]
    fn event_path_flags_default_to_the_documented_values() {
        assert_eq!(parse(&[]).unwrap(), Settings::default());
    }

    #[test]
    fn every_event_path_setting_has_a_flag() {
        let args = [
            "--proven-for=1",
            "--unknown-grace=2",
            "--fallback-poll=3",
            "--safety-resync=4",
            "--unreachable-poll=5",
            "--ill-share=2.5",
            "--ill-at-least=6",
            "--ill-stretch=7",
        ];
        let parsed = parse(&args).unwrap();
        let seconds = [parsed.proven_for, parsed.grace, parsed.poll, parsed.resync, parsed.poll_unreachable]
            .map(|d| d.as_secs());
        assert_eq!(
            (seconds, parsed.ill_share, parsed.ill_at_least, parsed.ill_stretch),
            ([1, 2, 3, 4, 5], 0.025, 6, 7)
        );
    }

    #[test]
    fn the_lease_duration_is_15_to_180_seconds() {
        assert_eq!(lease_seconds("15"), Ok(Duration::from_secs(15)));
        assert_eq!(lease_seconds("180"), Ok(Duration::from_mins(3)));
        for wrong in ["14", "181", "-1", "", "1m"] {
            let error = lease_seconds(wrong).unwrap_err();
            assert!(error.contains("from 15 to 180"), "{wrong}: {error}");
        }
    }

    #[test]
    fn percentages_out_of_range_are_refused() {
        for wrong in ["--ill-share=101", "--ill-share=-1", "--ill-share=NaN", "--ill-stretch=0"] {
            assert!(parse(&[wrong]).is_err(), "{wrong}");
        }
    }
}
