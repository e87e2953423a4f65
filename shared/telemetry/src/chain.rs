//! Errors for the log.

use std::{error::Error, fmt};

/// How many sources are printed; an error that is its own source must not hang the log.
const MAX_DEPTH: usize = 16;

/// Shows an error and all its sources as `what failed: why: why that`. Our errors' own `Display` leaves the
/// source out, so that no text appears twice.
pub fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl fmt::Display + 'a {
    Chain(error)
}

struct Chain<'a>(&'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        for _ in 0..MAX_DEPTH {
            let Some(error) = source else { break };
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("reading the configuration failed")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn shows_every_source_once() {
        let error = Outer(std::io::Error::other("disk on fire"));
        assert_eq!(chain(&error).to_string(), "reading the configuration failed: disk on fire");
    }
}
