//! Headings, lines and tables.

use std::fmt::Write;

/// Formats a duration in seconds.
pub(super) fn time(seconds: f64) -> String {
    if seconds < 0.0095 {
        format!("{:.1} ms", seconds * 1e3)
    } else if seconds < 1.0 {
        format!("{:.0} ms", seconds * 1e3)
    } else if seconds < 100.0 {
        format!("{seconds:.1} s")
    } else {
        format!("{seconds:.0} s")
    }
}

/// Markdown, or text for a terminal.
pub(super) struct Document {
    pub(super) markdown: bool,
    pub(super) text: String,
}

impl Document {
    pub(super) fn heading(&mut self, text: &str) {
        let before = if self.markdown { "### " } else { "" };
        let _ = writeln!(self.text, "{before}{text}\n");
    }

    pub(super) fn line(&mut self, text: &str) {
        let _ = writeln!(self.text, "{text}\n");
    }

    pub(super) fn table(&mut self, head: &[&str], rows: &[Vec<String>]) {
        if rows.is_empty() {
            return;
        }
        let cells = |row: &[String]| row.iter().map(|cell| cell.replace('|', "/")).collect::<Vec<_>>();
        if self.markdown {
            let _ = writeln!(self.text, "| {} |\n|{}", head.join(" | "), "---|".repeat(head.len()));
            for row in rows {
                let _ = writeln!(self.text, "| {} |", cells(row).join(" | "));
            }
        } else {
            let width = |column: usize| {
                let of = |row: &Vec<String>| row.get(column).map_or(0, |cell| cell.chars().count());
                rows.iter().map(of).max().unwrap_or(0).max(head.get(column).map_or(0, |h| h.chars().count()))
            };
            let line = |row: Vec<&str>| {
                let padded =
                    row.iter().enumerate().map(|(i, cell)| format!("{cell:<width$}", width = width(i)));
                padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
            };
            let _ = writeln!(
                self.text,
                "{}",
                line(
                    head.iter()
                        .map(|cell| cell.to_uppercase())
                        .collect::<Vec<_>>()
                        .iter()
                        .map(String::as_str)
                        .collect()
                )
            );
            for row in rows {
                let _ = writeln!(self.text, "{}", line(row.iter().map(String::as_str).collect()));
            }
        }
        self.text.push('\n');
    }
}
