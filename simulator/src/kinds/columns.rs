//! The columns of Table output, as `kubectl get` shows them.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Kind, tables};

/// Columns and the cells of a row.
pub(crate) struct Columns<'a> {
    kind: &'a Kind,
}

pub(super) type Cell = fn(&Value, Timestamp) -> Value;

/// Name, type, priority (0 is always shown), and how the cell is made.
pub(super) type Column = (&'static str, &'static str, i32, Cell);

impl<'a> Columns<'a> {
    pub(crate) fn of(kind: &'a Kind) -> Self {
        Self { kind }
    }

    /// `columnDefinitions`.
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

    /// The cells of a row.
    pub(crate) fn cells(&self, object: &Value, now: Timestamp) -> Value {
        let mut cells =
            if tables::has_name(self.kind) { Vec::new() } else { vec![tables::name(object, self.kind)] };
        match self.kind.custom() {
            Some(custom) if !custom.columns.is_empty() => {
                for column in &custom.columns {
                    let text = |field: &str| column.get(field).and_then(Value::as_str).unwrap_or_default();
                    let value = path(object, text("jsonPath"));
                    cells.push(if text("type") == "date" {
                        since(value.as_ref(), now)
                    } else {
                        value.unwrap_or(Value::Null)
                    });
                }
            }
            Some(_) => cells.push(since(object.pointer("/metadata/creationTimestamp"), now)),
            None => cells.extend(tables::of(self.kind).iter().map(|(_, _, _, cell)| cell(object, now))),
        }
        Value::Array(cells)
    }
}

/// What the API says of a field of metadata.
fn about(field: &str) -> &'static str {
    let fields = crate::schema::builtin::object_meta().properties();
    fields.and_then(|all| all.get(field)?.get("description")?.as_str()).unwrap_or_default()
}

/// The simple JSON paths of printer columns: fields, list positions and `[?(@.type=="Ready")]`.
fn path(object: &Value, path: &str) -> Option<Value> {
    let mut here = object;
    let mut rest = path.trim_start_matches('$');
    while !rest.is_empty() {
        if let Some(tail) = rest.strip_prefix('[') {
            let (inside, after) = tail.split_once(']')?;
            rest = after;
            here = match inside.strip_prefix("?(@.").and_then(|filter| filter.strip_suffix(')')) {
                Some(filter) => {
                    let (field, value) = filter.split_once("==")?;
                    let value = value.trim().trim_matches(['"', '\'']);
                    here.as_array()?
                        .iter()
                        .find(|item| item.get(field.trim()).and_then(Value::as_str) == Some(value))?
                }
                None => match inside.parse::<usize>() {
                    Ok(index) => here.get(index)?,
                    Err(_) => here.get(inside.trim_matches(['"', '\'']))?,
                },
            };
            continue;
        }
        rest = rest.strip_prefix('.').unwrap_or(rest);
        let mut end = rest.len();
        let mut escaped = false;
        for (index, c) in rest.char_indices() {
            if !escaped && (c == '.' || c == '[') {
                end = index;
                break;
            }
            escaped = c == '\\' && !escaped;
        }
        let (field, after) = rest.split_at(end);
        here = here.get(field.replace('\\', ""))?;
        rest = after;
    }
    Some(here.clone())
}

pub(super) fn since(time: Option<&Value>, now: Timestamp) -> Value {
    let Some(time) = time.and_then(Value::as_str).and_then(|time| time.parse::<Timestamp>().ok()) else {
        return Value::Null;
    };
    Value::from(duration(now.as_second().saturating_sub(time.as_second())))
}

/// As kubectl shows ages.
fn duration(seconds: i64) -> String {
    match seconds {
        ..0 => "<invalid>".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 if seconds % 60 != 0 => format!("{}m{}s", seconds / 60, seconds % 60),
        120..10_800 => format!("{}m", seconds / 60),
        10_800..28_800 if seconds % 3600 >= 60 => format!("{}h{}m", seconds / 3600, seconds % 3600 / 60),
        10_800..172_800 => format!("{}h", seconds / 3600),
        172_800..691_200 if seconds % 86_400 >= 3600 => {
            format!("{}d{}h", seconds / 86_400, seconds % 86_400 / 3600)
        }
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_printer_columns() {
        let object = json!({"status": {"state": "Ready", "conditions": [{"type": "A", "status": "True"}]}, "a.b": {"c": 1}});
        assert_eq!(path(&object, ".status.state"), Some(json!("Ready")));
        assert_eq!(path(&object, r#".status.conditions[?(@.type=="A")].status"#), Some(json!("True")));
        assert_eq!(path(&object, ".status.conditions[0].type"), Some(json!("A")));
        assert_eq!(path(&object, r".a\.b.c"), Some(json!(1)));
        assert_eq!(path(&object, ".none.x"), None);
    }

    #[test]
    fn ages_are_those_of_kubectl() {
        let shown: Vec<String> =
            [5, 119, 125, 600, 3600, 11_000, 90_000, 180_000, 900_000].map(duration).into();
        assert_eq!(shown, ["5s", "119s", "2m5s", "10m", "60m", "3h3m", "25h", "2d2h", "10d"]);
    }
}
