//! Flags for limits on agents; `docs/operate/limits.md` describes the effect of each.

use std::time::Duration;

use clap::Args;
use tidewatch_listener::{Limits, Rate};

/// Limits on the event port.
#[derive(Clone, Copy, Debug, PartialEq, Args)]
#[command(next_help_heading = "Limits on the event port")]
pub struct LimitArgs {
    /// Concurrent connections. Further connections wait to be accepted.
    #[arg(long, default_value_t = Limits::default().connections, value_name = "COUNT")]
    pub max_connections: usize,
    /// Concurrent connections of one identity. A further connection closes the oldest.
    #[arg(long, default_value_t = Limits::default().per_identity, value_name = "COUNT")]
    pub max_connections_per_identity: usize,
    /// Concurrent TLS handshakes. Further connections wait to be accepted.
    #[arg(long, default_value_t = Limits::default().handshakes, value_name = "COUNT")]
    pub max_handshakes: usize,
    /// Request bodies that are read concurrently, each up to 1 MiB.
    #[arg(long, default_value_t = Limits::default().bodies, value_name = "COUNT")]
    pub max_bodies: usize,
    /// Events of all runtimes that wait for the end of their reconcile.
    #[arg(long, default_value_t = Limits::default().held, value_name = "COUNT")]
    pub max_held_events: usize,
    /// Keys that wait for a worker. Above this number, events are rejected and agents are asked to wait.
    #[arg(long, default_value_t = 100_000, value_name = "COUNT")]
    pub max_queued: usize,
    /// Requests of one runtime per second; bursts of four times as many.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..), value_name = "COUNT")]
    pub requests_per_second: u32,
    /// Events of one runtime per second in the v2 contract; bursts of ten times as many.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..), value_name = "COUNT")]
    pub v2_events_per_second: u32,
    /// Events of all runtimes per second that are older than this process or part of a full report; bursts of
    /// four times as many.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..), value_name = "COUNT")]
    pub resent_per_second: u32,
    /// Deadline of a TLS handshake, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..), value_name = "SECONDS")]
    pub handshake_deadline: u64,
    /// Deadline of the first request of a connection, and of the head of an HTTP/1 request, in seconds.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..), value_name = "SECONDS")]
    pub header_deadline: u64,
    /// Deadline of a request body, in seconds.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..), value_name = "SECONDS")]
    pub body_deadline: u64,
    /// Maximum time between two requests of a connection, in seconds. Agents send a request every minute.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..), value_name = "SECONDS")]
    pub idle_deadline: u64,
}

impl From<LimitArgs> for Limits {
    fn from(args: LimitArgs) -> Self {
        let rate = |per_second: u32, bursts: f64| {
            let per_second = f64::from(per_second);
            Rate { per_second, burst: per_second * bursts }
        };
        Self {
            handshake: Duration::from_secs(args.handshake_deadline),
            headers: Duration::from_secs(args.header_deadline),
            body: Duration::from_secs(args.body_deadline),
            idle: Duration::from_secs(args.idle_deadline),
            connections: args.max_connections,
            per_identity: args.max_connections_per_identity,
            handshakes: args.max_handshakes,
            bodies: args.max_bodies,
            requests: rate(args.requests_per_second, 4.0),
            v2_events: rate(args.v2_events_per_second, 10.0),
            resent: rate(args.resent_per_second, 4.0),
            held: args.max_held_events,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        limits: LimitArgs,
    }

    #[test]
    fn without_flags_the_limits_are_the_listeners() {
        let flags = Flags::parse_from(["x"]).limits;
        assert_eq!(Limits::from(flags), Limits::default());
        let flags = Flags::parse_from(["x", "--requests-per-second", "7", "--idle-deadline", "9"]).limits;
        let limits = Limits::from(flags);
        assert_eq!(limits.requests, Rate { per_second: 7.0, burst: 28.0 });
        assert_eq!(limits.idle, Duration::from_secs(9));
        assert!(Flags::try_parse_from(["x", "--requests-per-second", "0"]).is_err());
    }

    #[test]
    fn each_flag_and_its_default_are_documented() {
        let text = include_str!("../../docs/operate/limits.md");
        let command = <Flags as clap::CommandFactory>::command();
        for flag in command.get_arguments().filter(|flag| flag.get_id() != "help") {
            let name = flag.get_long().unwrap();
            let line = text.lines().find(|line| line.contains(&format!("`--{name}`")));
            let default = flag.get_default_values()[0].to_str().unwrap();
            let shown =
                |line: &&str| line.replace(',', "").split('|').any(|cell| cell.trim().starts_with(default));
            assert!(
                line.is_some_and(|line| shown(&line)),
                "--{name} (default {default}) in docs/operate/limits.md: {line:?}"
            );
        }
    }
}
