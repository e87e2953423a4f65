//! Quantities: the API server stores `1000m` as `1`.

use serde_json::Value;

use super::Step;

const FIELDS: [&str; 8] =
    ["limits", "requests", "hard", "capacity", "sizeLimit", "divisor", "overhead", "target"];

pub(super) fn is_field(name: &str) -> bool {
    FIELDS.contains(&name)
}

pub(super) fn is_at(at: &[Step]) -> bool {
    let member = |step: &Step| matches!(step, Step::Member(name) if is_field(name));
    matches!(at.first(), Some(Step::Member(top)) if top == "spec") && at.iter().any(member)
}

/// False unless both are exact quantities.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    matches!((read(a), read(b)), (Some(a), Some(b)) if a == b)
}

/// In units of 10⁻⁹.
pub(super) fn read(value: &Value) -> Option<i128> {
    match value {
        Value::String(text) => parse(text),
        Value::Number(number) => parse(&number.to_string()),
        _ => None,
    }
}

fn parse(text: &str) -> Option<i128> {
    let (sign, text) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() > 30 {
        return None;
    }
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let scaled = digits.checked_mul(factor(unit)?)?;
    let divisor = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    (scaled % divisor == 0).then_some(sign * (scaled / divisor))
}

fn factor(unit: &str) -> Option<i128> {
    const NANO: i128 = 1_000_000_000;
    let ten = |exponent: i32| 10_i128.checked_pow(u32::try_from(exponent.checked_add(9)?).ok()?);
    if let Some(exponent) = unit.strip_prefix(['e', 'E']).filter(|e| !e.is_empty()) {
        return ten(exponent.parse().ok()?);
    }
    if let Some(binary) = unit.strip_suffix('i') {
        let power = ["K", "M", "G", "T", "P", "E"].iter().position(|u| *u == binary)?;
        return Some(NANO << (10 * (power + 1)));
    }
    ten(match unit {
        "n" => -9,
        "u" => -6,
        "m" => -3,
        "" => 0,
        "k" => 3,
        "M" => 6,
        "G" => 9,
        "T" => 12,
        "P" => 15,
        "E" => 18,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn differently_written_quantities_are_equal() {
        for (a, b) in [
            (json!("1000m"), json!("1")),
            (json!(1), json!("1")),
            (json!(0.5), json!("500m")),
            (json!("1024Mi"), json!("1Gi")),
            (json!("1.5Gi"), json!("1536Mi")),
            (json!("1e3"), json!("1k")),
            (json!("12E"), json!("12000P")),
            (json!("-0.1"), json!("-100m")),
        ] {
            assert!(same(&a, &b), "{a} {b}");
        }
    }

    #[test]
    fn different_or_invalid_quantities_are_not_equal() {
        let long = "9".repeat(40);
        for (a, b) in [("1", "2"), ("1M", "1Mi"), ("1x", "1x"), ("", ""), (".", "."), ("1e99", "1e99")] {
            assert!(!same(&json!(a), &json!(b)), "{a} {b}");
        }
        assert!(!same(&json!(long), &json!(long)) && !same(&json!(true), &json!(true)));
        assert!(!same(&json!("0.0000000001"), &json!("0")), "smaller than any that an API server keeps");
    }
}
