//! Results on standard output: text or JSON.

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use jiff::Timestamp;
use serde_json::Value;
use tidewatch_telemetry::stdio;

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// One `key: value` a line; columns.
    #[value(alias = "table")]
    Text,
    /// One JSON object.
    Json,
}

/// The option of commands that have both formats.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Output {
    /// Output format.
    #[arg(id = "output", short = 'o', long = "output", global = true, value_enum, default_value_t = Format::Text, value_name = "FORMAT")]
    pub(crate) format: Format,
}

impl Format {
    pub(crate) fn render(self, result: &Value) -> String {
        match self {
            Self::Json => format!("{result:#}"),
            Self::Text => {
                let lines = result.as_object().into_iter().flatten().map(|(key, value)| match value {
                    Value::String(text) => format!("{key}: {text}"),
                    Value::Array(items) => {
                        let items: Vec<String> = items
                            .iter()
                            .map(|i| i.as_str().map_or_else(|| i.to_string(), str::to_owned))
                            .collect();
                        format!("{key}: {}", items.join(", "))
                    }
                    other => format!("{key}: {other}"),
                });
                lines.collect::<Vec<_>>().join("\n")
            }
        }
    }

    pub(crate) fn print(self, result: &Value) -> anyhow::Result<()> {
        print(&self.render(result))
    }
}

/// Returns a time without fractions of a second.
pub(crate) fn seconds(time: &str) -> String {
    let whole = time.parse::<Timestamp>().and_then(|time| Timestamp::from_second(time.as_second()));
    whole.map_or_else(|_| time.to_owned(), |time| time.to_string())
}

pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    stdio::result(text).context("the result cannot be written")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn renders_text_and_json() {
        let result = json!({"files": ["a", "b"], "count": 2, "name": "x"});
        assert_eq!(Format::Text.render(&result), "count: 2\nfiles: a, b\nname: x");
        assert!(Format::Json.render(&result).starts_with("{\n"));
    }

    #[test]
    fn times_have_whole_seconds() {
        assert_eq!(seconds("2026-01-01T00:00:00.999999999Z"), "2026-01-01T00:00:00Z");
        assert_eq!(seconds("never"), "never");
    }
}
