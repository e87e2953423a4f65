//! The command line.

use std::{ffi::OsString, net::SocketAddr, path::PathBuf, time::Duration};

use clap::{CommandFactory, FromArgMatches, Parser, error::ErrorKind};
use tidewatch_oci::BaseUrl;
use tidewatch_telemetry::logging::Format;

use crate::{dry_run::Output, lease::DURATIONS, limits::LimitArgs, paths::Settings};

/// Verifies events of runtime agents, and installs, upgrades, repairs and removes modules in their clusters.
#[derive(Clone, Debug, Parser)]
#[command(name = "tidewatch-receiver", version, about, long_about = None)]
pub struct Program {
    /// How it works.
    #[command(flatten)]
    pub args: Args,
    /// Whether it only looks.
    #[command(flatten)]
    pub dry: DryRunArgs,
}

impl Program {
    /// Parses this process's arguments; exits with a message on an error or for help.
    #[must_use]
    pub fn read() -> Self {
        Self::of(std::env::args_os()).unwrap_or_else(|error| error.exit())
    }

    /// Makes the agents' TLS files optional in a dry run. `Args` cannot declare this: other programs flatten it without `--dry-run`.
    fn of(args: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Self, clap::Error> {
        let mut command = Self::command();
        for unused in ["client_ca", "tls_cert", "tls_key"] {
            command = command.mut_arg(unused, |arg| {
                arg.required(false)
                    .required_unless_present("dry_run")
                    .default_value_if("dry_run", "true", "none")
            });
        }
        let mut matches = command.try_get_matches_from_mut(args)?;
        let program = Self::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))?;
        match program.args.unusable() {
            Some(why) => Err(command.error(ErrorKind::ValueValidation, why)),
            None => Ok(program),
        }
    }
}

/// How a receiver works; other programs that have one in them take the same.
#[derive(Clone, Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub struct Args {
    /// Where agents connect (mTLS).
    #[arg(long, env = "TIDEWATCH_LISTEN", default_value = "0.0.0.0:8443", value_name = "ADDRESS")]
    pub listen: SocketAddr,
    /// Metrics, probes and pages for operators (no TLS; keep it inside).
    #[arg(long, env = "TIDEWATCH_ADMIN", default_value = "127.0.0.1:8080", value_name = "ADDRESS")]
    pub admin: SocketAddr,
    /// CA certificates that may have issued an agent's certificate (PEM).
    #[arg(long, env = "TIDEWATCH_CLIENT_CA", value_name = "FILE")]
    pub client_ca: PathBuf,
    /// The receiver's own certificate chain (PEM).
    #[arg(long, env = "TIDEWATCH_TLS_CERT", value_name = "FILE")]
    pub tls_cert: PathBuf,
    /// The receiver's own private key (PEM).
    #[arg(long, env = "TIDEWATCH_TLS_KEY", value_name = "FILE")]
    pub tls_key: PathBuf,
    /// Leaf certificates (PEM) of proxies that terminate TLS in front of this port: their word in the header
    /// X-Forwarded-Client-Cert is believed, nobody else's.
    #[arg(long, env = "TIDEWATCH_TRUSTED_PROXY", value_name = "FILE")]
    pub trusted_proxy: Option<PathBuf>,
    /// Kubeconfig of the control plane; without it the in-cluster configuration is used.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of Kymas, Manifests and kubeconfig Secrets in the control plane.
    #[arg(long, default_value = tidewatch_api::names::KCP_NAMESPACE)]
    pub namespace: String,
    /// OCI registry that holds the modules' components.
    #[arg(long, env = "TIDEWATCH_MODULES", value_name = "HOST[:PORT][/PATH]")]
    pub modules: String,
    /// Registry of modules from elsewhere, which a ModuleTemplate may name as the last of its descriptor's repository contexts
    /// (repeatable). A component whose template names no such registry is read from that of --modules.
    #[arg(long, value_name = "HOST[:PORT][/PATH]", value_parser = registry_place)]
    pub external_registry: Vec<String>,
    /// Registry that may be talked to without TLS, besides loopback (repeatable).
    #[arg(long, value_name = "HOST[:PORT]")]
    pub insecure_registry: Vec<String>,
    /// Docker configuration file with credentials of these registries, as the key `.dockerconfigjson` of a mounted Secret; read again
    /// when it changes. Registries that are not in it are read anonymously, and so is what templates of a runtime name.
    #[arg(long, env = "TIDEWATCH_REGISTRY_CREDENTIALS", value_name = "FILE")]
    pub registry_credentials: Option<PathBuf>,
    /// Folder for the cache of module layers; without one they are kept in memory alone, and read anew after a restart.
    #[arg(long, env = "TIDEWATCH_CACHE_DIR", value_name = "FOLDER")]
    pub cache_dir: Option<PathBuf>,
    /// How much that folder may hold, in MiB; then the oldest layers go.
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1024 * 1024))]
    pub cache_size: u64,
    /// Server that no kubeconfig may name: a network, an address, `host` or `host:port` (repeatable). The control
    /// plane's own address always is.
    #[arg(long, value_name = "RULE")]
    pub deny_server: Vec<String>,
    /// Where a manager's service is, if not where its Watcher says (repeatable).
    #[arg(long, value_name = "MANAGER=HOST:PORT", value_parser = route_address)]
    pub route_address: Vec<(String, String)>,
    /// Reconciles at the same time.
    #[arg(long, default_value = "16", value_parser = workers, value_name = "NUMBER")]
    pub workers: usize,
    /// Reconciles of one runtime at the same time.
    #[arg(long, default_value = "2", value_parser = workers, value_name = "NUMBER")]
    pub workers_per_runtime: usize,
    /// About the way of events.
    #[command(flatten)]
    pub paths: PathArgs,
    /// User that may watch in every runtime what the Watchers name, besides the agent's service account (repeatable);
    /// for agents that run outside of their runtime.
    #[arg(long, value_name = "NAME")]
    pub agent_user: Vec<String>,
    /// Where this process runs, as a rule its pod's name (default: the host's name). A Lease that is held by the same place is taken
    /// over at once: its process has ended.
    #[arg(long, env = "TIDEWATCH_IDENTITY", value_name = "NAME")]
    pub identity: Option<String>,
    /// For how long another receiver, or the Go manager, waits for this one without a sign of life, in seconds (15 to 180). One that cannot
    /// reach the control plane for two thirds of that ends.
    #[arg(long, default_value = "15", value_parser = lease_seconds, value_name = "SECONDS")]
    pub lease: Duration,
    /// Write nothing in runtimes; KCP is watched, and no event is acknowledged. The ConfigMap 'tidewatch-engine' with
    /// paused: "true" does the same, live.
    #[arg(long)]
    pub pause: bool,
    /// Leave the Go manager's watcher in runtimes whose events are proven to arrive without it (`docs/takeover.md`).
    #[arg(long)]
    pub keep_watcher: bool,
    /// Modules that only those Kymas get whom the kymaSelector of the ModuleReleaseMeta selects (separated by commas).
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = listed_name)]
    pub restricted_default_modules: Vec<String>,
    /// Secret in the control plane's namespace by which modules pull their images: it is brought to the namespace kyma-system of every
    /// runtime, and named in the workloads of modules.
    #[arg(long, env = "TIDEWATCH_SKR_IMAGE_PULL_SECRET", value_name = "NAME")]
    pub skr_image_pull_secret: Option<String>,
    /// Whether a default custom resource that says that it is in Error or Warning makes its module a Warning.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub module_cr_state: bool,
    /// Show the state of each Kyma and each module under the names of the Go lifecycle manager's metrics (docs/metrics.md). Their
    /// number grows with the fleet: 5 series a Kyma, 6 a module.
    #[arg(long)]
    pub object_metrics: bool,
    /// About updates of many runtimes, and of those that need a downtime.
    #[command(flatten)]
    pub updates: UpdateArgs,
    /// What is taken at most from agents.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// How long a shutdown waits for work in hand, in seconds.
    #[arg(long, default_value = "25", value_parser = seconds, value_name = "SECONDS")]
    pub grace: Duration,
    /// How log lines are written.
    #[arg(long, env = "TIDEWATCH_LOG_FORMAT", default_value = "json", value_parser = format_of)]
    pub log_format: Format,
    /// What is logged: a level, or targets with levels (default: info, and warn in a dry run, which tells what it finds by its list).
    #[arg(long, env = "TIDEWATCH_LOG", value_name = "LEVELS")]
    pub log_level: Option<String>,
}

impl Args {
    /// Returns an error that involves two arguments: `--modules` may use HTTP only if `--insecure-registry` lists it.
    fn unusable(&self) -> Option<String> {
        let base = BaseUrl::parse(&self.modules, &self.insecure_registry);
        base.err().map(|error| format!("--modules cannot be used: {error}"))
    }
}

/// A look at what would change (`docs/takeover.md`).
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct DryRunArgs {
    /// Look at everything once, say what this receiver would change, and end: nothing is written, no Lease is taken and no port is
    /// opened. Exit code 0: nothing but what a take-over is expected to change; 3: something else; 4: not everything could be looked
    /// at.
    #[arg(long)]
    pub dry_run: bool,
    /// How the list of a dry run is printed.
    #[arg(long, short, value_enum, default_value_t, requires = "dry_run", value_name = "FORMAT")]
    pub output: Output,
    /// For how long a dry run looks at most, in seconds.
    #[arg(long, default_value = "3600", value_parser = seconds, requires = "dry_run", value_name = "SECONDS")]
    pub dry_run_limit: Duration,
}

/// When updates reach runtimes (`docs/windows.md`).
#[derive(Clone, Debug, clap::Args)]
pub struct UpdateArgs {
    /// Policy of maintenance windows (JSON); looked at every 5 s. Without one, an update that needs a downtime is not done
    /// unless the runtime's user skips windows.
    #[arg(long, env = "TIDEWATCH_MAINTENANCE_POLICY", value_name = "FILE")]
    pub maintenance_policy: Option<PathBuf>,
    /// Least time that has to be left of a maintenance window for an update to begin in it, in seconds.
    #[arg(long, default_value = "1200", value_parser = seconds, value_name = "SECONDS")]
    pub min_maintenance_window: Duration,
    /// Over how long a change of the catalog is spread over the runtimes that it concerns, in seconds; 0 reaches all at
    /// once. What a user changes is done at once in any case.
    #[arg(long, default_value = "300", value_parser = seconds, value_name = "SECONDS")]
    pub rollout_window: Duration,
    /// How long a module may wait for the modules and APIs that it requires until that is a Warning, in seconds.
    #[arg(long, default_value = "900", value_parser = seconds, value_name = "SECONDS")]
    pub dependency_patience: Duration,
}

/// When the way of a runtime's events counts as proven, and what is done while it does not (`docs/delivery.md`).
#[derive(Clone, Debug, clap::Args)]
pub struct PathArgs {
    /// A runtime is proven while its canary came back at most this long ago, in seconds; agents send one a minute.
    #[arg(long, default_value = "75", value_parser = seconds, value_name = "SECONDS")]
    pub proven_for: Duration,
    /// How long a new runtime, or every runtime after a start, may be unknown before it is polled, in seconds.
    #[arg(long, default_value = "180", value_parser = seconds, value_name = "SECONDS")]
    pub unknown_grace: Duration,
    /// Between two polls of a runtime that is not proven, in seconds; 0 polls never.
    #[arg(long, default_value = "120", value_parser = seconds, value_name = "SECONDS")]
    pub fallback_poll: Duration,
    /// Between two safety resyncs of a proven runtime, in seconds; 0 resyncs never.
    #[arg(long, default_value = "43200", value_parser = seconds, value_name = "SECONDS")]
    pub safety_resync: Duration,
    /// Between two polls of a runtime that is silent and does not answer (hibernated, cut off or gone), in seconds; 0 polls
    /// never.
    #[arg(long, default_value = "3600", value_parser = seconds, value_name = "SECONDS")]
    pub unreachable_poll: Duration,
    /// The path itself counts as ill when more than this share of the fleet is unproven, in percent, ...
    #[arg(long, default_value = "10", value_parser = percent, value_name = "PERCENT")]
    pub ill_share: f64,
    /// ... and at least this many runtimes are.
    #[arg(long, default_value_t = 20, value_name = "RUNTIMES")]
    pub ill_at_least: usize,
    /// How many times rarer polls are while the path is ill.
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
fn registry_place(text: &str) -> Result<String, String> {
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
    let said = text.parse().ok().filter(|count| (1..=1024).contains(count));
    said.ok_or_else(|| "use a number from 1 to 1024".to_owned())
}

fn seconds(text: &str) -> Result<Duration, std::num::ParseIntError> {
    text.parse().map(Duration::from_secs)
}

fn lease_seconds(text: &str) -> Result<Duration, String> {
    let said = text.parse().ok().filter(|seconds| DURATIONS.contains(seconds));
    said.map(Duration::from_secs)
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
    fn a_registry_that_no_template_could_name_is_refused() {
        for good in ["ghcr.example", "guests.example:5000/kyma", "127.0.0.1:5000/a/b", "localhost"] {
            assert_eq!(registry_place(good), Ok(good.to_owned()));
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
            assert!(registry_place(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_look_needs_nothing_of_what_serves_agents() {
        let modules = ["tidewatch-receiver", "--modules", "registry.example.com"];
        let look = Program::of([&modules[..], &["--dry-run"]].concat()).unwrap();
        assert!(look.dry.dry_run && look.args.modules == "registry.example.com");
        let error = Program::of(modules).unwrap_err().to_string();
        for flag in ["--client-ca", "--tls-cert", "--tls-key"] {
            assert!(error.contains(flag), "{error}");
        }
        let files = ["--client-ca", "ca.pem", "--tls-cert", "tls.pem", "--tls-key", "key.pem"];
        let serves = Program::of([&modules[..], &files].concat()).unwrap();
        assert!(!serves.dry.dry_run && serves.args.client_ca.ends_with("ca.pem"));
    }

    fn look(args: &[&str]) -> Result<Program, clap::Error> {
        Program::of([&["tidewatch-receiver", "--dry-run"], args].concat())
    }

    #[test]
    fn a_registry_that_the_engine_could_not_use_is_refused() {
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

    #[test]
    fn names_of_a_list_are_trimmed_and_none_is_empty() {
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
    fn what_is_not_said_of_the_path_is_as_documented() {
        assert_eq!(parse(&[]).unwrap(), Settings::default());
    }

    #[test]
    fn everything_about_the_path_can_be_said() {
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
        let said = parse(&args).unwrap();
        let seconds =
            [said.proven_for, said.grace, said.poll, said.resync, said.poll_unreachable].map(|d| d.as_secs());
        assert_eq!(
            (seconds, said.ill_share, said.ill_at_least, said.ill_stretch),
            ([1, 2, 3, 4, 5], 0.025, 6, 7)
        );
    }

    #[test]
    fn a_lease_leaves_time_for_its_renewal_and_is_no_longer_than_the_go_manager_waits() {
        assert_eq!(lease_seconds("15"), Ok(Duration::from_secs(15)));
        assert_eq!(lease_seconds("180"), Ok(Duration::from_mins(3)));
        for wrong in ["14", "181", "-1", "", "1m"] {
            let error = lease_seconds(wrong).unwrap_err();
            assert!(error.contains("from 15 to 180"), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_share_is_a_share() {
        for wrong in ["--ill-share=101", "--ill-share=-1", "--ill-share=NaN", "--ill-stretch=0"] {
            assert!(parse(&[wrong]).is_err(), "{wrong}");
        }
    }
}
