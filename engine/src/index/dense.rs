//! JSON with binary UUIDs and times, which are most of the difference between similar objects.

use jiff::Timestamp;
use uuid::Uuid;

/// Binary markers: never in UTF-8.
const UUID: u8 = 0xff;
const TIME: u8 = 0xfe;
/// Text lengths without quotation marks, in bytes.
const UUID_TEXT: usize = 36;
const TIME_TEXT: usize = 20;

pub(super) fn dense(text: &str) -> Vec<u8> {
    let mut dense = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        if let Some(uuid) = quoted(rest, UUID_TEXT).and_then(uuid) {
            dense.push(UUID);
            dense.extend(uuid);
            rest = &rest[UUID_TEXT + 2..];
        } else if let Some(seconds) = quoted(rest, TIME_TEXT).and_then(seconds) {
            dense.push(TIME);
            dense.extend(seconds.to_be_bytes());
            rest = &rest[TIME_TEXT + 2..];
        } else {
            dense.push(first);
            rest = after;
        }
    }
    dense
}

pub(super) fn text(dense: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::with_capacity(dense.len() * 2);
    let mut rest = dense;
    while let Some((&first, after)) = rest.split_first() {
        rest = match first {
            UUID => {
                let (uuid, after) = after.split_first_chunk::<16>()?;
                text.extend(format!("\"{}\"", Uuid::from_bytes(*uuid)).bytes());
                after
            }
            TIME => {
                let (seconds, after) = after.split_first_chunk::<4>()?;
                text.extend(format!("\"{}\"", time_text(u32::from_be_bytes(*seconds))?).bytes());
                after
            }
            _ => {
                text.push(first);
                after
            }
        };
    }
    Some(text)
}

/// A quoted text of `size` bytes.
fn quoted(bytes: &[u8], size: usize) -> Option<&str> {
    let (inner, end) = bytes.strip_prefix(b"\"")?.split_at_checked(size)?;
    if end.first() == Some(&b'"') { std::str::from_utf8(inner).ok() } else { None }
}

/// Canonical form only.
fn uuid(text: &str) -> Option<[u8; 16]> {
    let uuid = Uuid::try_parse(text).ok()?;
    (uuid.to_string() == text).then(|| uuid.into_bytes())
}

/// The form of [`time_text`] only.
fn seconds(text: &str) -> Option<u32> {
    let seconds = u32::try_from(text.parse::<Timestamp>().ok()?.as_second()).ok()?;
    (time_text(seconds)? == text).then_some(seconds)
}

fn time_text(seconds: u32) -> Option<String> {
    Some(Timestamp::from_second(seconds.into()).ok()?.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn there_and_back(json: &str) -> usize {
        let short = dense(json);
        assert_eq!(text(&short).as_deref(), Some(json.as_bytes()), "{json}");
        short.len()
    }

    #[test]
    fn uuids_and_times_are_short_and_all_else_stays() {
        for (json, size) in [
            (r#""6e94b08b-d0ce-4eb4-82c1-f272f48599da""#, 17),
            (r#"{"uid":"00000000-0000-0000-0000-000000000000","a":"1970-01-01T00:00:00Z"}"#, 35),
            (r#""2106-02-07T06:28:15Z""#, 5),
            // Not canonical, or neither.
            (r#""2106-02-07T06:28:16Z""#, 22),
            (r#""1969-12-31T23:59:59Z""#, 22),
            (r#""2026-02-30T00:00:00Z""#, 22),
            (r#""2026-01-01t00:00:00z""#, 22),
            (r#""6E94B08B-d0ce-4eb4-82c1-f272f48599da""#, 38),
            (r#""6e94b08bd0ce-4eb4-82c1-f272f48599da-""#, 38),
            (r#""+e94b08b-d0ce-4eb4-82c1-f272f48599da""#, 38),
            (r#""äe94b08-d0ce-4eb4-82c1-f272f48599da""#, 38),
            (r#"\"2026-01-01T00:00:00Z\""#, 24),
        ] {
            assert_eq!(there_and_back(json), size, "{json}");
        }
    }

    #[test]
    fn what_was_not_made_here_is_refused() {
        for bytes in [&[UUID, 1][..], &[b'a', TIME, 0, 0, 0]] {
            assert_eq!(text(bytes), None);
        }
    }

    proptest! {
        #[test]
        fn any_text_comes_back(parts in prop::collection::vec(prop_oneof![
            "\\PC{0,40}",
            "\"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\"",
            "\"[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9]Z\"?",
        ], 0..12)) {
            let _ = there_and_back(&parts.concat());
        }
    }
}
