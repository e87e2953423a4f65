//! Standard output and error. Somebody who reads the first lines only (`… | head`) has made no mistake, and ends nothing: the macros of the
//! standard library panic there.

use std::io::{self, ErrorKind, Write as _};

/// Writes the result of a command, with a line's end.
///
/// # Errors
/// What standard output says, for instance that the disk is full; not that nobody reads any more.
pub fn result(text: &str) -> io::Result<()> {
    unless_closed(writeln!(io::stdout().lock(), "{}", text.trim_end_matches('\n')))
}

/// Says on standard output what happens. Whether somebody hears it does not matter for what is done.
pub fn say(text: &str) {
    let _ = writeln!(io::stdout().lock(), "{text}");
}

/// Says something on standard error: progress, or why it ends. Whether somebody hears it does not matter either.
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
    fn a_reader_that_has_gone_is_no_error_and_a_full_disk_is() {
        assert!(unless_closed(Err(ErrorKind::BrokenPipe.into())).is_ok());
        assert!(unless_closed(Err(ErrorKind::StorageFull.into())).is_err());
    }
}
