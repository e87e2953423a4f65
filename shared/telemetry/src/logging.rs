//! Logs on standard error.

use std::{fmt, fs::File, io, str::FromStr, sync::Arc};

use tracing::Subscriber;
use tracing_subscriber::{
    Layer, Registry,
    filter::{LevelFilter, Targets},
    fmt::layer,
    layer::SubscriberExt,
    registry::LookupSpan,
    util::SubscriberInitExt,
};

/// Line format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// JSON.
    #[default]
    Json,
    /// Text.
    Text,
}

/// Error of starting.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    /// Invalid level.
    #[error(
        "log level {level:?} is not valid; use error, warn, info, debug, trace or a list like info,kube=warn"
    )]
    Level {
        /// Level.
        level: String,
        /// Cause.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// Already started.
    #[error("logging was started before; start it once, in main")]
    AlreadyStarted,
    /// Unknown format.
    #[error("log format {0:?} is not known; use json or text")]
    Format(String),
}

/// Limited at every level: at `warn`, the Kubernetes client logs answers it cannot parse, possibly Secrets.
const QUIET: (&str, LevelFilter) = ("kube_client::client", LevelFilter::ERROR);

/// A layer besides the log lines, with its own filter.
pub type Extra = Box<dyn Layer<Registry> + Send + Sync>;

/// Starts logging. `level` is a level or a list like `info,kube=warn`. The environment is ignored.
///
/// A line has the list of its spans. All spans have the level DEBUG, so lines of the default level have none.
pub fn init(format: Format, level: &str) -> Result<(), LoggingError> {
    let subscriber = tracing_subscriber::registry().with(filter(level)?).with(lines(format));
    subscriber.try_init().map_err(|_| LoggingError::AlreadyStarted)
}

/// Like [`init`], with another layer. `level` does not concern that one.
pub fn init_with(extra: Extra, format: Format, level: &str) -> Result<(), LoggingError> {
    let lines = lines(format).with_filter(filter(level)?);
    tracing_subscriber::registry()
        .with(extra)
        .with(lines)
        .try_init()
        .map_err(|_| LoggingError::AlreadyStarted)
}

/// Like [`init`], as text to an unbounded file.
pub fn to_file(file: File, level: &str) -> Result<(), LoggingError> {
    let lines = layer().with_ansi(false).with_writer(Arc::new(file));
    let subscriber = tracing_subscriber::registry().with(filter(level)?).with(lines);
    subscriber.try_init().map_err(|_| LoggingError::AlreadyStarted)
}

/// Log lines on standard error.
fn lines<S>(format: Format) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let lines = layer().with_writer(io::stderr);
    match format {
        Format::Json => lines.json().flatten_event(true).with_current_span(false).boxed(),
        Format::Text => lines.with_ansi(io::IsTerminal::is_terminal(&io::stderr())).boxed(),
    }
}

fn filter(level: &str) -> Result<Targets, LoggingError> {
    let filter: Result<Targets, _> = level.parse();
    let filter = filter.map_err(|source| LoggingError::Level { level: level.to_owned(), source })?;
    Ok(filter.with_target(QUIET.0, QUIET.1))
}

impl FromStr for Format {
    type Err = LoggingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "json" => Ok(Self::Json),
            "text" => Ok(Self::Text),
            other => Err(LoggingError::Format(other.to_owned())),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Json => "json",
            Self::Text => "text",
        })
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn invalid_levels_and_a_second_init_are_errors() {
        assert!(matches!(init(Format::Json, "info,kube=loud"), Err(LoggingError::Level { .. })));
        init(Format::Json, "info,kube=warn").unwrap();
        assert!(matches!(init(Format::Text, "info"), Err(LoggingError::AlreadyStarted)));
    }

    #[test]
    fn secret_bearing_logs_are_disabled_at_every_level() {
        for level in ["info", "trace", "debug,kube_client=trace", "kube_client::client=trace"] {
            let filter = filter(level).unwrap();
            assert!(!filter.would_enable("kube_client::client", &Level::WARN), "{level}");
            assert!(filter.would_enable("kube_client::client", &Level::ERROR), "{level}");
        }
        let filter = filter("info,kube=warn").unwrap();
        assert!(filter.would_enable("tidewatch_agent", &Level::INFO));
        assert!(!filter.would_enable("tidewatch_engine", &Level::DEBUG), "the level of all spans");
        assert!(
            !filter.would_enable("kube::any", &Level::INFO) && filter.would_enable("kube::any", &Level::WARN)
        );
    }

    #[test]
    fn formats_parse_as_they_print() {
        for format in [Format::Json, Format::Text] {
            assert_eq!(format.to_string().parse::<Format>().unwrap(), format);
        }
        assert!("xml".parse::<Format>().is_err());
    }
}
