//! Metrics and logs of a program.

use anyhow::{Context, Result, ensure};

use crate::{Process, http};

/// Returns the integer value of a `/metrics` series, or 0 if absent. Labels in `series` are sorted:
/// `requests_total{code="200",endpoint="v3"}`.
pub fn value(page: &str, series: &str) -> u64 {
    page.lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.trim().parse().ok())
        .unwrap_or(0)
}

/// Returns a series' value from an admin address.
pub async fn metric(admin: &str, series: &str) -> Result<u64> {
    Ok(value(&http::text(&format!("{admin}/metrics")).await?, series))
}

/// A position in a log.
#[derive(Debug)]
pub struct LogMark<'a> {
    process: &'a Process,
    from: usize,
}

impl<'a> LogMark<'a> {
    /// Returns the log's current end.
    pub fn here(process: &'a Process) -> Result<Self> {
        Ok(Self { process, from: text(process)?.len() })
    }

    /// Returns lines of `target` (a module path prefix) since then, of level INFO and above.
    pub fn lines(&self, target: &str) -> Result<Vec<String>> {
        let text = text(self.process)?;
        let since = text.get(self.from..).context("the log has become shorter")?;
        Ok(since
            .lines()
            .filter(|line| line.contains(&format!(" {target}")))
            .filter(|line| [" INFO ", " WARN ", "ERROR "].iter().any(|level| line.contains(level)))
            .map(str::to_owned)
            .collect())
    }
}

/// Fails if any task of a program has panicked.
pub fn no_panic(process: &Process) -> Result<()> {
    let text = text(process)?;
    let panics: Vec<&str> = text.lines().filter(|line| line.contains("panicked")).collect();
    ensure!(panics.is_empty(), "{} has panicked: {panics:#?}", process.name());
    Ok(())
}

/// Returns the whole log.
pub fn text(process: &Process) -> Result<String> {
    let bytes =
        std::fs::read(process.log()).with_context(|| format!("cannot read {}", process.log().display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_found_by_its_whole_name() {
        let page = "# HELP a x\na{b=\"c\"} 2\na{b=\"cd\"} 3\nab 4\n";
        assert_eq!(value(page, "a{b=\"c\"}"), 2);
        assert_eq!(value(page, "ab"), 4);
        assert_eq!(value(page, "a"), 0);
    }
}
