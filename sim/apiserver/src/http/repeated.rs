//! JSON with duplicate names. The last counts, in typed objects per field; the client gets a warning.

use std::fmt;

use k8s_openapi::serde::{
    Deserialize,
    de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};

use crate::json::whole_numbers;

/// Maximum duplicates and characters of each, to fit answer headers.
const MAX_PATHS: usize = 16;
const MAX_PATH_BYTES: usize = 256;

/// Returns value and duplicates, in order and unique. If `typed`, fields missing later keep their first
/// values.
pub(super) fn read(text: &[u8], typed: bool) -> serde_json::Result<(Value, Vec<String>)> {
    let mut repeated = Repeated { paths: Vec::new(), seen: 0, typed };
    let mut reader = serde_json::Deserializer::from_slice(text);
    let value = Reading { path: &Path::Top, repeated: &mut repeated }.deserialize(&mut reader)?;
    reader.end()?;
    Ok((value, repeated.paths))
}

/// The YAML reader reports duplicates itself.
pub(super) fn read_yaml<'de, D: Deserializer<'de>>(reader: D) -> Result<Value, D::Error> {
    let mut repeated = Repeated { paths: Vec::new(), seen: 0, typed: false };
    Reading { path: &Path::Top, repeated: &mut repeated }.deserialize(reader)
}

struct Repeated {
    paths: Vec<String>,
    /// Includes known places.
    seen: usize,
    typed: bool,
}

impl Repeated {
    fn add(&mut self, path: &Path<'_>) {
        self.seen += 1;
        if self.seen > MAX_PATHS {
            return;
        }
        let path = path.to_string().chars().take(MAX_PATH_BYTES).collect();
        if !self.paths.contains(&path) {
            self.paths.push(path);
        }
    }
}

/// Formatted only if reported.
enum Path<'a> {
    Top,
    Field(&'a Path<'a>, &'a str),
    Item(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Top => Ok(()),
            Self::Field(Self::Top, name) => out.write_str(name),
            Self::Field(above, name) => write!(out, "{above}.{name}"),
            Self::Item(above, index) => write!(out, "{above}[{index}]"),
        }
    }
}

/// Overwrites maps by name and lists by index, like Go.
fn read_over(before: &mut Value, value: Value) {
    match (before, value) {
        (Value::Object(before), Value::Object(fields)) => {
            for (name, value) in fields {
                match before.get_mut(&name) {
                    Some(before) => read_over(before, value),
                    None => _ = before.insert(name, value),
                }
            }
        }
        (Value::Array(before), Value::Array(mut items)) => {
            before.truncate(items.len());
            let more = items.split_off(before.len());
            before.iter_mut().zip(items).for_each(|(before, item)| read_over(before, item));
            before.extend(more);
        }
        (before, value) => *before = value,
    }
}

/// YAML also allows boolean and number keys.
struct Key(String);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        let mut name = read_yaml(reader)?;
        whole_numbers(&mut name);
        match name {
            Value::String(name) => Ok(Self(name)),
            Value::Bool(_) | Value::Number(_) => Ok(Self(name.to_string())),
            _ => Err(de::Error::custom("the name of a field is no text")),
        }
    }
}

struct Reading<'a> {
    path: &'a Path<'a>,
    repeated: &'a mut Repeated,
}

impl<'de> DeserializeSeed<'de> for Reading<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reading<'_> {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("any JSON")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let path = Path::Item(self.path, list.len());
            match items.next_element_seed(Reading { path: &path, repeated: &mut *self.repeated })? {
                Some(item) => list.push(item),
                None => return Ok(list.into()),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(Key(name)) = fields.next_key::<Key>()? {
            let path = Path::Field(self.path, &name);
            if map.contains_key(&name) {
                self.repeated.add(&path);
            }
            let value = fields.next_value_seed(Reading { path: &path, repeated: &mut *self.repeated })?;
            match map.get_mut(&name).filter(|_| self.repeated.typed) {
                Some(before) => read_over(before, value),
                None => _ = map.insert(name, value),
            }
        }
        Ok(map.into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_repeated_key_wins_and_is_reported_once() {
        let (value, repeated) =
            read(br#"{"a": {"b": 1, "b": 2, "b": 3}, "l": [{}, {"x": null, "x": true}], "a": {"b": -4, "b": 5.5}}"#, false)
                .unwrap();
        assert_eq!(value, json!({"a": {"b": 5.5}, "l": [{}, {"x": true}]}));
        assert_eq!(repeated, ["a.b", "l[1].x", "a"]);
        let (value, repeated) =
            read(br#"{"a": {"b": 1, "c": [{"x": 1}, 2]}, "a": {"c": [{"y": 1}], "d": null}}"#, true).unwrap();
        assert_eq!(value, json!({"a": {"b": 1, "c": [{"x": 1, "y": 1}], "d": null}}));
        assert_eq!(repeated, ["a"]);
        let many = format!("{{{}\"a\": 1}}", "\"a\": 1, \"b\": 2, ".repeat(100));
        assert_eq!(read(many.as_bytes(), true).unwrap().1, ["a", "b"]);
        let yaml = "n: 1\n5: {1.5: a, 1e3: b}\n\"yes\": c\n";
        let value = serde_saphyr::with_deserializer_from_str(yaml, |reader| read_yaml(reader)).unwrap();
        assert_eq!(value, json!({"false": 1, "5": {"1.5": "a", "1000": "b"}, "yes": "c"}));
        assert!(read(b"{} x", true).is_err() && read("[".repeat(1_000).as_bytes(), true).is_err());
    }
}
