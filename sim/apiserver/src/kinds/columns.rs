//! Columns of Table output for `kubectl get`.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Kind, tables};

pub(crate) struct Columns<'a> {
    kind: &'a Kind,
}

pub(super) type Cell = fn(&Value, Timestamp) -> Value;

/// Name, type, priority (0: always shown), cell.
pub(super) type Column = (&'static str, &'static str, i32, Cell);

impl<'a> Columns<'a> {
    pub(crate) fn of(kind: &'a Kind) -> Self {
        Self { kind }
    }

    pub(crate) fn definitions(&self) -> Value {
        let of = |name: &str, kind: &str, format: &str, about: &str, priority: i32| json!({"name": name, "type": kind, "format": format, "description": about, "priority": priority});
        let mut all = vec![of("Name", "string", "name", about("name"), 0)];
        if tables::has_name(self.kind) {
            all.clear();
        }
        match self.kind.custom() {
            Some(custom) if !custom.columns.is_empty() => {
                for column in &custom.columns {
                    let text = |field: &str| column.get(field).and_then(Value::as_str).unwrap_or_default();
                    let priority = column.get("priority").and_then(Value::as_i64).unwrap_or_default();
                    let priority = i32::try_from(priority).unwrap_or_default();
                    all.push(of(text("name"), text("type"), text("format"), text("description"), priority));
                }
            }
            Some(_) => all.push(of("Age", "date", "", about("creationTimestamp"), 0)),
            None => all.extend(tables::of(self.kind).iter().map(|(name, kind, priority, _)| {
                of(name, kind, if *name == "Name" { "name" } else { "" }, "", *priority)
            })),
        }
        Value::Array(all)
    }

    pub(crate) fn cells(&self, object: &Value, now: Timestamp) -> Value {
        let mut cells =
            if tables::has_name(self.kind) { Vec::new() } else { vec![tables::name(object, self.kind)] };
        match self.kind.custom() {
            Some(custom) if !custom.columns.is_empty() => {
                for column in &custom.columns {
                    let text = |field: &str| column.get(field).and_then(Value::as_str).unwrap_or_default();
                    let value = path(object, text("jsonPath"));
                    cells.push(value.map_or(Value::Null, |value| cell(text("type"), value, now)));
                }
            }
            Some(_) => cells.push(since(object.pointer("/metadata/creationTimestamp"), now)),
            None => cells.extend(tables::of(self.kind).iter().map(|(_, _, _, cell)| cell(object, now))),
        }
        Value::Array(cells)
    }
}

fn about(field: &str) -> &'static str {
    let fields = crate::schema::builtin::object_meta().properties();
    fields.and_then(|all| all.get(field)?.get("description")?.as_str()).unwrap_or_default()
}

/// First value at a printer column's path: fields, signed indices, `[*]`, `[?(@.type=="Ready")]`.
fn path<'a>(here: &'a Value, path: &str) -> Option<&'a Value> {
    let path = path.trim_start_matches('$');
    if path.is_empty() {
        return Some(here);
    }
    let Some(inside) = path.strip_prefix('[') else {
        let (field, rest) = field_of(path.strip_prefix('.').unwrap_or(path));
        return self::path(here.get(field.replace('\\', ""))?, rest);
    };
    let (inside, rest) = inside.split_once(']')?;
    let below = |item: &'a Value| self::path(item, rest);
    if inside == "*" {
        return here.as_array()?.iter().find_map(below);
    }
    if let Some(filter) = inside.strip_prefix("?(@.").and_then(|filter| filter.strip_suffix(')')) {
        let (field, value) = filter.split_once("==")?;
        let value = value.trim().trim_matches(['"', '\'']);
        let fits = |item: &&Value| item.get(field.trim()).and_then(Value::as_str) == Some(value);
        return here.as_array()?.iter().filter(fits).find_map(below);
    }
    let item = match inside.parse::<isize>() {
        Ok(index) if index < 0 => {
            let items = here.as_array()?;
            items.get(items.len().checked_sub(index.unsigned_abs())?)
        }
        Ok(index) => here.get(index.unsigned_abs()),
        Err(_) => here.get(inside.trim_matches(['"', '\''])),
    };
    below(item?)
}

/// Splits at the next `.` or `[` without `\`.
fn field_of(path: &str) -> (&str, &str) {
    let mut escaped = false;
    let end = path.find(|c: char| {
        let ends = !escaped && matches!(c, '.' | '[');
        escaped = c == '\\' && !escaped;
        ends
    });
    path.split_at(end.unwrap_or(path.len()))
}

/// A CRD column's cell; null if the type differs.
fn cell(kind: &str, value: &Value, now: Timestamp) -> Value {
    match (kind, value) {
        ("integer", Value::Number(number)) => {
            #[expect(clippy::cast_possible_truncation, reason = "what is shown has no fraction")]
            let whole = || number.as_f64().map(|number| number.trunc() as i64);
            number.as_i64().or_else(whole).map_or(Value::Null, Value::from)
        }
        ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) | ("string", Value::String(_)) => {
            value.clone()
        }
        ("string", other) => other.to_string().into(),
        ("date", Value::String(time)) => {
            time.parse().map_or_else(|_| "<invalid>".into(), |time| age(time, now))
        }
        _ => Value::Null,
    }
}

pub(super) fn since(time: Option<&Value>, now: Timestamp) -> Value {
    let Some(time) = time.and_then(Value::as_str).and_then(|time| time.parse::<Timestamp>().ok()) else {
        return Value::Null;
    };
    age(time, now)
}

fn age(time: Timestamp, now: Timestamp) -> Value {
    duration(now.as_second().saturating_sub(time.as_second())).into()
}

const DAY: i64 = 86_400;
const YEARS_2: i64 = 2 * 365 * DAY;
const YEARS_8: i64 = 8 * 365 * DAY;

fn duration(seconds: i64) -> String {
    match seconds {
        ..0 => "<invalid>".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 if seconds % 60 != 0 => format!("{}m{}s", seconds / 60, seconds % 60),
        120..10_800 => format!("{}m", seconds / 60),
        10_800..28_800 if seconds % 3600 >= 60 => format!("{}h{}m", seconds / 3600, seconds % 3600 / 60),
        10_800..172_800 => format!("{}h", seconds / 3600),
        172_800..691_200 if seconds % DAY >= 3600 => {
            format!("{}d{}h", seconds / DAY, seconds % DAY / 3600)
        }
        691_200..YEARS_2 => format!("{}d", seconds / DAY),
        YEARS_2..YEARS_8 if seconds / DAY % 365 != 0 => {
            format!("{}y{}d", seconds / DAY / 365, seconds / DAY % 365)
        }
        _ => format!("{}y", seconds / DAY / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_printer_columns() {
        let object = json!({"status": {"state": "Ready", "conditions": [{"type": "A", "status": "True"}]}, "a.b": {"c": 1}});
        assert_eq!(path(&object, ".status.state"), Some(&json!("Ready")));
        assert_eq!(path(&object, r#".status.conditions[?(@.type=="A")].status"#), Some(&json!("True")));
        for list in ["[0]", "[-1]", "[*]"] {
            assert_eq!(path(&object, &format!(".status.conditions{list}.type")), Some(&json!("A")));
        }
        assert_eq!(path(&object, r".a\.b.c"), Some(&json!(1)));
        for nothing in [".none.x", ".status.conditions[-2]", ".status.conditions[9]", "[", ".status.state[*]"]
        {
            assert_eq!(path(&object, nothing), None, "{nothing}");
        }
    }

    #[test]
    fn ages_are_those_of_kubectl() {
        let shown: Vec<String> =
            [5, 119, 125, 600, 3600, 11_000, 90_000, 180_000, 900_000].map(duration).into();
        assert_eq!(shown, ["5s", "119s", "2m5s", "10m", "60m", "3h3m", "25h", "2d2h", "10d"]);
        let years: Vec<String> = [729, 730, 731, 2919, 2920, 4000].map(|days| duration(days * DAY)).into();
        assert_eq!(years, ["729d", "2y", "2y1d", "7y364d", "8y", "10y"]);
    }
}
