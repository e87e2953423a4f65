//! Locations in JSON text, for messages.

use std::fmt;

/// Path to a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Path(Vec<Step>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(usize),
}

impl Path {
    pub(super) fn key(&self, key: &str) -> Self {
        self.with(Step::Key(key.to_owned()))
    }

    pub(super) fn index(&self, index: usize) -> Self {
        self.with(Step::Index(index))
    }

    fn with(&self, step: Step) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }

    /// Line from 1 of the value, or of the nearest enclosing one.
    pub(super) fn line(&self, text: &str) -> usize {
        let mut at = skip_blank(text, 0);
        for step in &self.0 {
            match enter(text, at, step) {
                Some(inner) => at = inner,
                None => break,
            }
        }
        1 + text.bytes().take(at).filter(|b| *b == b'\n').count()
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("the policy");
        }
        for (n, step) in self.0.iter().enumerate() {
            match step {
                Step::Key(key) if n == 0 => write!(f, "{key}")?,
                Step::Key(key) => write!(f, ".{key}")?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// Go's reader ignores case.
pub(super) fn is_field(written: &str, name: &str) -> bool {
    written.eq_ignore_ascii_case(name)
}

/// Last duplicate wins, exact spelling first.
fn enter(text: &str, at: usize, step: &Step) -> Option<usize> {
    let open = text.as_bytes().get(at)?;
    let mut at = skip_blank(text, at + 1);
    let (mut exact, mut folded) = (None, None);
    for index in 0.. {
        match (open, step) {
            (b'{', Step::Key(name)) if text.as_bytes().get(at) == Some(&b'"') => {
                let end = skip_value(text, at);
                let key: String = serde_json::from_str(text.get(at..end)?).ok()?;
                // Colon.
                at = skip_blank(text, skip_blank(text, end) + 1);
                if key == *name {
                    exact = Some(at);
                } else if is_field(&key, name) {
                    folded = Some(at);
                }
            }
            (b'[', Step::Index(wanted)) if text.as_bytes().get(at) != Some(&b']') => {
                if index == *wanted {
                    return Some(at);
                }
            }
            _ => break,
        }
        at = skip_blank(text, skip_value(text, at));
        if text.as_bytes().get(at) != Some(&b',') {
            break;
        }
        at = skip_blank(text, at + 1);
    }
    exact.or(folded)
}

fn skip_blank(text: &str, at: usize) -> usize {
    let rest = text.as_bytes().get(at..).unwrap_or_default();
    at + rest.iter().take_while(|b| b.is_ascii_whitespace()).count()
}

fn skip_value(text: &str, at: usize) -> usize {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    let bytes = text.as_bytes();
    for (n, byte) in bytes.iter().enumerate().skip(at) {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => {
                    in_string = false;
                    if depth == 0 {
                        return n + 1;
                    }
                }
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'{' | b'[' => depth += 1,
            // After a number or word.
            b'}' | b']' | b',' if depth == 0 => return n,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return n + 1;
                }
            }
            _ => {}
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{
  "a": [1, "x]\"}", {"b": 2,
    "B": 3,
    "deep": [[true,
      null]]}],
  "c": {},
  "a2": 0
}"#;

    fn line(build: impl Fn(Path) -> Path) -> usize {
        build(Path::default()).line(TEXT)
    }

    #[test]
    fn every_present_value_has_its_line() {
        assert_eq!(line(|p| p), 1);
        assert_eq!(line(|p| p.key("a").index(1)), 2);
        assert_eq!(line(|p| p.key("a").index(2).key("b")), 2);
        assert_eq!(line(|p| p.key("a").index(2).key("B")), 3);
        assert_eq!(line(|p| p.key("a").index(2).key("DEEP").index(0).index(1)), 5);
        assert_eq!(line(|p| p.key("c")), 6);
        assert_eq!(line(|p| p.key("A2")), 7);
    }

    #[test]
    fn a_missing_value_gets_its_parents_line() {
        assert_eq!(line(|p| p.key("c").key("x")), 6);
        assert_eq!(line(|p| p.key("a").index(9)), 2);
        assert_eq!(line(|p| p.key("a").index(2).key("deep").key("x")), 4);
        assert_eq!(Path::default().key("x").line(""), 1);
        assert_eq!(Path::default().key("x").index(3).key("y").to_string(), "x[3].y");
    }

    proptest::proptest! {
        #[test]
        fn line_lookup_never_panics(text: String, key: String, index: usize) {
            Path::default().key(&key).index(index).line(&text);
            Path::default().index(0).key(&key).line(&format!("[{{{text}"));
        }
    }
}
