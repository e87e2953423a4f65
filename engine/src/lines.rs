//! Names in one piece. Each as an allocation of its own, and the nodes of a set, would lie among what comes and goes while a fleet is
//! installed, and keep the pages around them (docs/concepts/scale.md).

/// What no name of an object has in it (RFC 1123), and each ends with here.
const END: char = '\n';

/// Names, in the order in which they were given.
#[derive(Debug, Default)]
pub(crate) struct Lines(Box<str>);

impl Lines {
    /// These names.
    pub(crate) fn of<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Self {
        let size = names.clone().map(|name| name.len() + END.len_utf8()).sum();
        let mut all = String::with_capacity(size);
        for name in names {
            all.push_str(name);
            all.push(END);
        }
        Self(all.into())
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.split_terminator(END)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_is_what_is_there() {
        for names in [&[][..], &["a"], &["b.c", "a-1", "b.c"]] {
            let lines = Lines::of(names.iter().copied());
            assert!(lines.iter().eq(names.iter().copied()), "{lines:?}");
        }
    }
}
