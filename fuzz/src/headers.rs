use tidewatch_wire::header_fields;

/// Most bytes of a header's value: more of a line is its body.
const MAX_VALUE: usize = 16 * 1024;

/// What stands before a body, as in HTTP/1.1: lines `name: value` of the headers that an agent and a receiver say to each
/// other, then an empty line. An input that does not begin so is a body alone.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Headers<'d>([Option<&'d [u8]>; 3]);

const NAMES: [&str; 3] = [header_fields::EPOCH, header_fields::SESSION, header_fields::CONFIGURATION];

impl<'d> Headers<'d> {
    /// The headers of an input, and its body.
    pub(crate) fn split(data: &'d [u8]) -> (Self, &'d [u8]) {
        let (mut headers, mut rest) = (Self::default(), data);
        while let Some((line, after)) =
            rest.iter().position(|byte| *byte == b'\n').map(|at| rest.split_at(at))
        {
            let (_, after) = after.split_at(1);
            if line.is_empty() {
                return (headers, after);
            }
            let header = NAMES.iter().zip(&mut headers.0).find_map(|(name, slot)| {
                let value = line.strip_prefix(name.as_bytes())?.strip_prefix(b": ")?;
                (is_value(value)).then_some((slot, value))
            });
            let Some((slot, value)) = header else { break };
            // Of a header that comes several times, the first is looked at.
            slot.get_or_insert(value);
            rest = after;
        }
        (Self::default(), data)
    }

    /// A header's value.
    pub(crate) fn get(self, name: &str) -> Option<&'d [u8]> {
        NAMES.iter().zip(self.0).find(|(known, _)| **known == name).and_then(|(_, value)| value)
    }
}

/// What an HTTP library lets through: no control characters but tabs.
fn is_value(value: &[u8]) -> bool {
    value.len() <= MAX_VALUE && value.iter().all(|byte| *byte == b'\t' || !byte.is_ascii_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_precede_an_empty_line() {
        let (headers, body) = Headers::split(b"tidewatch-epoch: a\ntidewatch-epoch: b\n\n{}\n\n");
        assert_eq!((headers.get("tidewatch-epoch"), body), (Some(&b"a"[..]), &b"{}\n\n"[..]));
        assert_eq!(headers.get("tidewatch-session"), None);
        for alone in [
            &b"{}\n\n"[..],
            b"{}",
            b"tidewatch-epoch: a\n{}",
            b"tidewatch-epoch: \x01\n\n{}",
            b"other: a\n\n",
        ] {
            let (headers, body) = Headers::split(alone);
            assert_eq!((headers.get("tidewatch-epoch"), body), (None, alone));
        }
    }
}
