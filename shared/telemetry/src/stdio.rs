//! Standard output and error. The standard macros panic on closed pipes (`… | head`).

use std::io::{self, ErrorKind, Write as _};

/// Writes a command's result. A closed pipe is no error.
pub fn result(text: &str) -> io::Result<()> {
    unless_closed(writeln!(io::stdout().lock(), "{}", text.trim_end_matches('\n')))
}

/// Writes to standard output, ignoring errors.
pub fn line(text: &str) {
    let _ = writeln!(io::stdout().lock(), "{text}");
}

/// Writes to standard error, ignoring errors.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

fn unless_closed(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_pipes_are_ignored_full_disks_are_errors() {
        assert!(unless_closed(Err(ErrorKind::BrokenPipe.into())).is_ok());
        assert!(unless_closed(Err(ErrorKind::StorageFull.into())).is_err());
    }
}
