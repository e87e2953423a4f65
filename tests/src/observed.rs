//! What a program says of itself: its metrics and its log.

use anyhow::{Context, Result, ensure};

use crate::{Process, http};

/// The value, a whole number, of a series on a `/metrics` page; 0 if it is not there. `series` is the name with its labels in
/// alphabetical order, as it is printed: `requests_total{code="200",endpoint="v3"}`.
pub fn value(page: &str, series: &str) -> u64 {
    page.lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.trim().parse().ok())
        .unwrap_or(0)
}

/// The value of a series of the program with that admin address.
pub async fn metric(admin: &str, series: &str) -> Result<u64> {
    Ok(value(&http::text(&format!("{admin}/metrics")).await?, series))
}

/// A place in a log, from which on it is read.
#[derive(Debug)]
pub struct LogMark<'a> {
    process: &'a Process,
    from: usize,
}

impl<'a> LogMark<'a> {
    /// The present end of the log.
    pub fn here(process: &'a Process) -> Result<Self> {
        Ok(Self { process, from: text(process)?.len() })
    }

    /// What `target` (a module path's beginning) has logged since, of level INFO and above.
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

/// Fails if a program has panicked anywhere so far, in whichever task.
pub fn no_panic(process: &Process) -> Result<()> {
    let text = text(process)?;
    let panics: Vec<&str> = text.lines().filter(|line| line.contains("panicked")).collect();
    ensure!(panics.is_empty(), "{} has panicked: {panics:#?}", process.name());
    Ok(())
}

/// A program's whole log so far.
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
