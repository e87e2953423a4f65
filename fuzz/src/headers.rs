use tidewatch_wire::standing;

/// Limit on a header value's bytes. A longer line belongs to the body.
const MAX_VALUE: usize = 16 * 1024;

/// Optional `name: value` lines of agent-receiver headers, ended by an empty line as in HTTP/1.1. Otherwise
/// the input is only a body.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Headers<'d>([Option<&'d [u8]>; 3]);

const NAMES: [&str; 3] = [standing::EPOCH, standing::SESSION, standing::CONFIGURATION];

impl<'d> Headers<'d> {
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
            // The first of repeated headers counts.
            slot.get_or_insert(value);
            rest = after;
        }
        (Self::default(), data)
    }

    pub(crate) fn get(self, name: &str) -> Option<&'d [u8]> {
        NAMES.iter().zip(self.0).find(|(known, _)| **known == name).and_then(|(_, value)| value)
    }
}

/// HTTP libraries reject control characters except tabs.
fn is_value(value: &[u8]) -> bool {
    value.len() <= MAX_VALUE && value.iter().all(|byte| *byte == b'\t' || !byte.is_ascii_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_stand_before_an_empty_line() {
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
