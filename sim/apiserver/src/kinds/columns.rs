//! Columns of Table output for `kubectl get`.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    cells::{age, since},
    kind::Kind,
    tables,
};

pub(crate) struct Columns<'a> {
    kind: &'a Kind,
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printer_column_paths_are_evaluated() {
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
}
