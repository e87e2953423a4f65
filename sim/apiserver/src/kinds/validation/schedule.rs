//! `CronJob` schedules.

use serde_json::Value;

use crate::{json::text, schema::cause::Cause};

#[derive(Clone, Copy)]
struct Field {
    min: u32,
    max: u32,
    /// Of the values from `min` on.
    names: &'static [&'static str],
}

const FIELDS: [Field; 5] = [
    Field { min: 0, max: 59, names: &[] },
    Field { min: 0, max: 23, names: &[] },
    Field { min: 1, max: 31, names: &[] },
    Field {
        min: 1,
        max: 12,
        names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    },
    Field { min: 0, max: 6, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] },
];
const DESCRIPTORS: [&str; 7] =
    ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];

pub(super) fn check(spec: &Value, path: &str, causes: &mut Vec<Cause>) {
    let given = text(spec, "schedule");
    let at = format!("{path}.schedule");
    if given.is_empty() {
        causes.push(Cause::required(&at, ""));
    } else if given.contains("TZ") {
        let why = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
        causes.push(Cause::invalid(&at, &given.into(), why));
    } else if let Err(why) = schedule(given) {
        causes.push(Cause::invalid(&at, &given.into(), &why));
    }
    let Some(zone) = spec.get("timeZone").and_then(Value::as_str) else { return };
    let why = match zone {
        "" => "timeZone must be nil or non-empty string".to_owned(),
        zone if zone.eq_ignore_ascii_case("local") => {
            "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones".to_owned()
        }
        _ => return,
    };
    causes.push(Cause::invalid(&format!("{path}.timeZone"), &zone.into(), &why));
}

fn schedule(text: &str) -> Result<(), String> {
    if let Some(every) = text.strip_prefix("@every ") {
        let unread = crate::schema::formats::duration(every).is_none();
        let quoted = Value::from(every);
        return if unread {
            Err(format!("failed to parse duration {text}: time: invalid duration {quoted}"))
        } else {
            Ok(())
        };
    }
    if text.starts_with('@') {
        let known = DESCRIPTORS.contains(&text);
        return if known { Ok(()) } else { Err(format!("unrecognized descriptor: {text}")) };
    }
    let fields: Vec<&str> = text.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
    }
    fields.iter().zip(FIELDS).try_for_each(|(field, bounds)| {
        field.split(',').filter(|part| !part.is_empty()).try_for_each(|part| range(part, bounds))
    })
}

/// `number`, `from-to` or `*`, with optional `/step`.
fn range(text: &str, field: Field) -> Result<(), String> {
    let Field { min, max, names } = field;
    let number = |text: &str| {
        let position = names.iter().position(|name| text.eq_ignore_ascii_case(name));
        if let Some(position) = position.and_then(|position| u32::try_from(position).ok()) {
            return Ok(position + min);
        }
        let parsed = text.parse::<i64>();
        let parsed = parsed.map_err(|_| {
            format!(
                "failed to parse int from {text}: strconv.Atoi: parsing {}: invalid syntax",
                Value::from(text)
            )
        })?;
        u32::try_from(parsed).map_err(|_| format!("negative number ({parsed}) not allowed: {text}"))
    };
    let steps: Vec<&str> = text.split('/').collect();
    let ends: Vec<&str> = steps.first().copied().unwrap_or_default().split('-').collect();
    let (from, mut to) = match ends.as_slice() {
        ["*" | "?", ..] => (min, max),
        [one] => {
            let one = number(one)?;
            (one, one)
        }
        [from, to] => (number(from)?, number(to)?),
        _ => return Err(format!("too many hyphens: {text}")),
    };
    let step = match steps.as_slice() {
        [_] => 1,
        [_, step] => {
            if ends.len() == 1 {
                to = max;
            }
            number(step)?
        }
        _ => return Err(format!("too many slashes: {text}")),
    };
    if from < min {
        return Err(format!("beginning of range ({from}) below minimum ({min}): {text}"));
    }
    if to > max {
        return Err(format!("end of range ({to}) above maximum ({max}): {text}"));
    }
    if from > to {
        return Err(format!("beginning of range ({from}) beyond end of range ({to}): {text}"));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {text}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_five_fields_or_a_name() {
        for good in ["@daily", "@every 5m", "*/5 1-3,7 1,15 * ?", "* * * JAN MON-FRI"] {
            assert_eq!(schedule(good), Ok(()), "{good}");
        }
        for bad in ["daily", "@never", "@every x", "61 * * * *", "*/0 * * * *", "5-1 * * * *", "a * * * *"] {
            assert!(schedule(bad).is_err(), "{bad}");
        }
    }
}
