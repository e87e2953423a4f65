//! String formats; those that Kubernetes ignores always pass.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use jiff::civil::Date;
use serde_json::Value;

use super::patterns;
use crate::kinds::validation::names;

const PATTERNS: &[(&str, &str)] = &[
    ("uuid", "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$"),
    ("uuid3", "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$"),
    ("uuid4", "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$"),
    ("uuid5", "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$"),
    ("hostname", r"(?i)^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$"),
    ("ssn", r"^\d{3}[- ]?\d{2}[- ]?\d{4}$"),
    ("hexcolor", "^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"),
    ("bsonobjectid", "^[0-9a-fA-F]{24}$"),
    (
        "mac",
        "^([0-9a-fA-F]{2}([:-][0-9a-fA-F]{2}){5}|[0-9a-fA-F]{2}([:-][0-9a-fA-F]{2}){7}|[0-9a-fA-F]{4}([.][0-9a-fA-F]{4}){2,3})$",
    ),
    (
        "creditcard",
        r"^(4\d{12}(\d{3})?|5[1-5]\d{14}|(222[1-9]|22[3-9]\d|2[3-6]\d{2}|27[01]\d|2720)\d{12}|6(011|5\d\d)\d{12}|3[47]\d{13}|3(0[0-5]|[68]\d)\d{11}|(2131|1800|35\d{3})\d{11}|6[27]\d{14})$",
    ),
    (
        "rgbcolor",
        r"^rgb\(\s*(25[0-5]|2[0-4]\d|1?\d?\d)\s*,\s*(25[0-5]|2[0-4]\d|1?\d?\d)\s*,\s*(25[0-5]|2[0-4]\d|1?\d?\d)\s*\)$",
    ),
    ("datetime", DATE_TIME),
    ("date-time", DATE_TIME),
];
const DATE_TIME: &str =
    r"^\d{4}-\d{2}-\d{2}[tT]([01]\d|2[0-3]):[0-5]\d:[0-5]\d([.]\d+)?([zZ]|[-+]\d{2}:?\d{2})$";
pub(crate) fn holds(format: &str, text: &str) -> bool {
    let pattern = PATTERNS.iter().find(|(name, _)| *name == format);
    if let Some((name, pattern)) = pattern {
        // Cards have separators.
        let plain: String = if *name == "creditcard" { digits(text) } else { text.to_owned() };
        let day = !pattern.ends_with(DATE_TIME) || text.get(..10).is_some_and(is_date);
        let numeric =
            *name == "hostname" && text.rsplit('.').next().is_some_and(|top| top.parse::<u64>().is_ok());
        let like = patterns::compiled(pattern).is_some_and(|regex| regex.is_match(&plain));
        return like && day && !numeric && (*name != "creditcard" || luhn(&plain));
    }
    match format {
        // Leading zeros are allowed.
        "ipv4" => {
            text.split('.').count() == 4
                && text.split('.').all(|part| part.len() <= 3 && part.parse::<u8>().is_ok())
        }
        "ipv6" => text.parse::<std::net::Ipv6Addr>().is_ok(),
        "cidr" => names::network(text).is_some(),
        "uri" => uri(text),
        "email" => email(text),
        "isbn" => isbn(text, 10) || isbn(text, 13),
        "isbn10" => isbn(text, 10),
        "isbn13" => isbn(text, 13),
        "byte" => !text.is_empty() && BASE64_STANDARD.decode(text).is_ok(),
        "date" => is_date(text),
        "duration" => duration(text).is_some() || words_of_time(text),
        "k8s-short-name" => names::label(text).is_empty(),
        "k8s-long-name" => names::subdomain(text).is_empty(),
        _ => true,
    }
}

fn digits(text: &str) -> String {
    text.chars().filter(char::is_ascii_digit).collect()
}

fn luhn(digits: &str) -> bool {
    let sum: u32 = digits
        .bytes()
        .rev()
        .map(|byte| u32::from(byte.saturating_sub(b'0')))
        .enumerate()
        .map(|(index, digit)| if index % 2 == 1 { digit * 2 / 10 + digit * 2 % 10 } else { digit })
        .sum();
    sum.is_multiple_of(10)
}

fn is_date(text: &str) -> bool {
    text.len() == 10 && text.parse::<Date>().is_ok()
}

/// A URL with a scheme, or an absolute path.
fn uri(text: &str) -> bool {
    let (scheme, rest) = match text.split_once(':') {
        Some((scheme, rest)) if !scheme.contains('/') => (scheme, rest),
        _ if text.starts_with('/') => ("", text),
        _ => return false,
    };
    let named = scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let begins = text.starts_with('/') || scheme.starts_with(|c: char| c.is_ascii_alphabetic());
    let host =
        rest.strip_prefix("//").map_or("", |rest| rest.split(['/', '?', '#']).next().unwrap_or_default());
    let brackets = host.matches('[').count() == host.matches(']').count();
    let escapes = rest
        .split('%')
        .skip(1)
        .all(|part| part.get(..2).is_some_and(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit())));
    named && begins && brackets && escapes && !host.contains(' ') && !text.chars().any(char::is_control)
}

/// An address, optionally in `name <address>` form.
fn email(text: &str) -> bool {
    let address = match text.split_once('<') {
        Some((_, rest)) => match rest.trim_end().strip_suffix('>') {
            Some(address) => address,
            None => return false,
        },
        None => text,
    };
    let plain = |part: &str| !part.is_empty() && !part.contains([' ', '<', '>', ',', ';', '@']);
    address.rsplit_once('@').is_some_and(|(name, domain)| plain(name) && plain(domain))
}

fn isbn(text: &str, length: usize) -> bool {
    let plain: String = text.chars().filter(|c| !matches!(c, '-' | ' ')).collect();
    let digit = |(index, c): (usize, char)| match c {
        'X' if length == 10 && index == 9 => Some(10),
        c => c.to_digit(10),
    };
    let Some(all) = plain.chars().enumerate().map(digit).collect::<Option<Vec<u32>>>() else { return false };
    let weigh = |index: usize| match length {
        10 => 10 - u32::try_from(index).unwrap_or_default(),
        _ => {
            if index.is_multiple_of(2) {
                1
            } else {
                3
            }
        }
    };
    let modulus = if length == 10 { 11 } else { 10 };
    all.len() == length
        && all.iter().enumerate().map(|(index, digit)| weigh(index) * digit).sum::<u32>() % modulus == 0
}

/// A Go duration such as `1h30m5.5s`.
pub(crate) fn duration(text: &str) -> Option<()> {
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Some(());
    }
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
        let (number, after) = rest.split_at(end);
        number.parse::<f64>().ok()?;
        let unit = ["ns", "us", "µs", "ms", "s", "m", "h"].into_iter().filter(|unit| after.starts_with(unit));
        rest = after.strip_prefix(unit.max_by_key(|unit| unit.len())?)?;
    }
    Some(())
}

/// Also durations, such as `2 days`.
fn words_of_time(text: &str) -> bool {
    const WORDS: &str = r"(?i)(\d+)\s*(ns|nano|us|µs|micro|ms|milli|s|sec|m|min|h|hr|hour|d|day|w|week|wk)s?";
    patterns::compiled(WORDS).is_some_and(|regex| regex.is_match(text))
}

/// `None` for other formats.
pub(crate) fn number_holds(format: &str, number: &Value) -> Option<bool> {
    let whole = number.as_f64().unwrap_or_default();
    let integer = number.as_i64();
    Some(match format {
        "int32" => whole.fract() == 0.0 && whole >= f64::from(i32::MIN) && whole <= f64::from(i32::MAX),
        "int64" => integer.is_some() || !number.is_u64() && whole.fract() == 0.0 && whole.abs() < 9.2e18,
        "float" => whole.abs() <= f64::from(f32::MAX),
        "double" => true,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_accepts_only_its_own_values() {
        for (format, good, bad) in [
            ("uuid", "6e94b08bd0ce4eb482c1f272f48599da", "6e94"),
            ("ipv4", "1.2.3.4", "1.2.3"),
            ("uri", "https://a.b/c", "a.b"),
            ("uri", "/a/b", "%zz"),
            ("email", "A B <a@b.c>", "@b"),
            ("hostname", "a.b", "1.2.3.4"),
            ("isbn13", "978-3-16-148410-0", "978-3-16-148410-1"),
            ("isbn10", "0321751043", "0321751044"),
            ("creditcard", "4111-1111-1111-1111", "4111"),
            ("date", "2020-01-31", "2020-02-30"),
            ("duration", "1h30m5.5s", "1"),
            ("duration", "2 days", "x"),
            ("date-time", "2020-01-01t00:00:00z", "2020-13-01T00:00:00Z"),
            ("byte", "YQ==", "YQ"),
        ] {
            assert!(holds(format, good), "{format} {good}");
            assert!(!holds(format, bad), "{format} {bad}");
        }
        assert!(holds("no-such-format", "x"));
    }
}
