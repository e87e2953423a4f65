//! Errors for logs.

use std::{error::Error, fmt};

/// Bound for an error that is its own source.
const MAX_DEPTH: usize = 16;

/// Shows an error and its sources. Our errors' `Display` omits the source.
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
    fn an_error_chain_shows_every_source_once() {
        let error = Outer(std::io::Error::other("disk on fire"));
        assert_eq!(chain(&error).to_string(), "reading the configuration failed: disk on fire");
    }
}
