//! Quantities such as `100m` and `1Gi`.

use serde_json::Value;

pub(crate) const MALFORMED: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
/// Maximum digits.
const MAX_DIGITS: usize = 30;
/// Limit for binary units, in billionths; clamps larger numbers.
const MAX_NANOS: i128 = i64::MAX as i128 * 1_000_000_000;
const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quantity {
    /// In billionths.
    nanos: i128,
    form: Form,
}

/// Suffix style: `k`, `Ki` or `e3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Decimal,
    Binary,
    Exponent,
}

impl Quantity {
    pub(crate) fn of(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => Self::parse(text.trim()),
            Value::Number(number) => Self::parse(&number.to_string()),
            _ => None,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (sign, text) = match text.strip_prefix('-') {
            Some(rest) => (-1, rest),
            None => (1, text.strip_prefix('+').unwrap_or(text)),
        };
        let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
        let (number, suffix) = text.split_at(split);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || number.len() > MAX_DIGITS {
            return None;
        }
        let digits = format!("0{whole}{fraction}").parse::<i128>().ok()?;
        let scale = i32::try_from(fraction.len()).ok()?;
        let unit = BINARY.iter().position(|unit| *unit == suffix);
        let (form, factor, exponent) = match (unit, DECIMAL.iter().find(|(unit, _)| *unit == suffix)) {
            (Some(unit), _) => (Form::Binary, 1024_i128.checked_pow(u32::try_from(unit).ok()? + 1)?, 0),
            (None, Some((_, exponent))) => (Form::Decimal, 1, *exponent),
            (None, None) => (Form::Exponent, 1, suffix.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?),
        };
        let scaled = digits.saturating_mul(factor);
        let power = exponent.checked_sub(scale)?.checked_add(9)?;
        let ten = 10_i128.saturating_pow(power.unsigned_abs());
        let nanos = if power >= 0 {
            scaled.saturating_mul(ten)
        } else {
            scaled / ten + i128::from(scaled % ten != 0)
        };
        let nanos = match unit {
            Some(_) => nanos.min(MAX_NANOS),
            // Only the API has unlimited decimals.
            None if nanos == i128::MAX => return None,
            None => nanos,
        };
        Some(Self { nanos: nanos * sign, form })
    }

    pub(crate) fn cmp(self, other: Self) -> std::cmp::Ordering {
        self.nanos.cmp(&other.nanos)
    }

    pub(crate) fn is_negative(self) -> bool {
        self.nanos < 0
    }

    pub(crate) fn is_positive(self) -> bool {
        self.nanos > 0
    }

    pub(crate) fn is_whole(self) -> bool {
        self.nanos % 1_000_000_000 == 0
    }

    /// Pods need at least thousandths; rounds up.
    pub(crate) fn rounded(self) -> Self {
        const LEAST: i128 = 1_000_000;
        let rest = self.nanos.rem_euclid(LEAST);
        let nanos = if rest == 0 { self.nanos } else { self.nanos.saturating_add(LEAST - rest) };
        Self { nanos, ..self }
    }

    /// Writes `1000m` as `1`, `0.5` as `500m`, `1024Mi` as `1Gi`.
    pub(crate) fn canonical(self) -> String {
        if self.nanos == 0 {
            return "0".to_owned();
        }
        let whole = self.nanos / 1_000_000_000;
        if self.form == Form::Binary && self.is_whole() {
            let (mut number, mut unit) = (whole, "");
            for next in BINARY {
                if number % 1024 != 0 {
                    break;
                }
                number /= 1024;
                unit = next;
            }
            return format!("{number}{unit}");
        }
        let (mut number, mut power) = (self.nanos, -9);
        while number % 1000 == 0 && power < 18 {
            number /= 1000;
            power += 3;
        }
        if self.form == Form::Exponent && power != 0 {
            return format!("{number}e{power}");
        }
        let unit = DECIMAL.iter().find(|(_, exponent)| *exponent == power).map_or("", |(unit, _)| unit);
        format!("{number}{unit}")
    }
}

/// Invalid quantities stay.
pub(crate) fn canonical_of_pod(value: &mut Value) {
    if let Some(quantity) = Quantity::of(value) {
        *value = quantity.rounded().canonical().into();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn quantities_never_panic(
            text in r"[-+]?[0-9]{0,30}(\.[0-9]{0,30})?([KMGTPE]i|[numkMGTPE]|[eE]-?[0-9]{1,10})?",
        ) {
            canonical_of_pod(&mut json!(text));
        }
    }

    #[test]
    fn quantities_are_written_in_their_canonical_form() {
        for (given, expected) in [
            (json!(1), "1"),
            (json!("1000m"), "1"),
            (json!("0.5"), "500m"),
            (json!("1024Mi"), "1Gi"),
            (json!("1.5Gi"), "1536Mi"),
            (json!("100Mi"), "100Mi"),
            (json!("2500"), "2500"),
            (json!("1000"), "1k"),
            (json!("0"), "0"),
            (json!("10m"), "10m"),
            (json!("1e3"), "1e3"),
            (json!("1500e-3"), "1500e-3"),
            (json!("1e4"), "10e3"),
            (json!("1.5e3"), "1500"),
            (json!("-1"), "-1"),
            (json!("x"), "x"),
            (json!("0.0000000147573952589676412927Ei"), "17014118346047m"),
            (json!("99999999999999Ei"), "9223372036854775807"),
            (json!("1e99"), "1e99"),
        ] {
            let mut value = given.clone();
            canonical_of_pod(&mut value);
            assert_eq!(value, expected, "{given}");
        }
        assert_eq!(Quantity::parse("0.0001").unwrap().rounded().canonical(), "1m");
        assert!(
            ["", "1 x", "..1", "1..2", "m", "1e", "1KI"].iter().all(|text| Quantity::parse(text).is_none())
        );
    }
}
