//! The log: one line per event on standard error.

use std::{fmt, fs::File, io, str::FromStr, sync::Arc};
use tracing_subscriber::EnvFilter;

/// How a log line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// One JSON object per line, for collectors.
    #[default]
    Json,
    /// For people.
    Text,
}

/// Why logging could not be started.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    /// The level is neither a level nor a list of `target=level`.
    #[error(
        "log level {level:?} is not valid; use error, warn, info, debug, trace or a list like info,kube=warn"
    )]
    Level {
        /// What was given.
        level: String,
        /// What is wrong with it.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// The process logs already.
    #[error("logging was started before; start it once, in main")]
    AlreadyStarted,
    /// The format is not known.
    #[error("log format {0:?} is not known; use json or text")]
    Format(String),
}

/// Kept quiet whatever level is asked for: at `warn`, the Kubernetes client logs a whole answer that it cannot
/// parse, and that answer may be a Secret.
const QUIET: [&str; 1] = ["kube_client::client=error"];

/// Starts logging for the whole process, once. `level` is an [`EnvFilter`] directive list such as `info` or
/// `info,kube=warn`; the environment is not read.
pub fn init(format: Format, level: &str) -> Result<(), LoggingError> {
    let builder = tracing_subscriber::fmt().with_env_filter(filter(level)?).with_writer(io::stderr);
    match format {
        Format::Json => builder.json().flatten_event(true).with_current_span(false).try_init(),
        Format::Text => builder.with_ansi(io::IsTerminal::is_terminal(&io::stderr())).try_init(),
    }
    .map_err(|_| LoggingError::AlreadyStarted)
}

/// As [`init`], as text into a file, which grows without a limit: for programs that a person watches.
pub fn to_file(file: File, level: &str) -> Result<(), LoggingError> {
    let builder = tracing_subscriber::fmt().with_env_filter(filter(level)?).with_ansi(false);
    builder.with_writer(Arc::new(file)).try_init().map_err(|_| LoggingError::AlreadyStarted)
}

fn filter(level: &str) -> Result<EnvFilter, LoggingError> {
    let filter = EnvFilter::builder()
        .parse(level)
        .map_err(|source| LoggingError::Level { level: level.to_owned(), source })?;
    Ok(QUIET.iter().filter_map(|d| d.parse().ok()).fold(filter, EnvFilter::add_directive))
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
    use super::*;

    #[test]
    fn bad_levels_and_second_starts_are_errors() {
        assert!(matches!(init(Format::Json, "info,kube=loud"), Err(LoggingError::Level { .. })));
        init(Format::Json, "info,kube=warn").unwrap();
        assert!(matches!(init(Format::Text, "info"), Err(LoggingError::AlreadyStarted)));
    }

    #[test]
    fn formats_parse_as_they_print() {
        for format in [Format::Json, Format::Text] {
            assert_eq!(format.to_string().parse::<Format>().unwrap(), format);
        }
        assert!("xml".parse::<Format>().is_err());
    }
}
