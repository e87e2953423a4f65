//! Converts messages to Go's JSON.

use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use serde_json::Value;

use super::{
    messages::{self, Field, Kind, Location, Many},
    wire::{Fields, Malformed, Wire},
};
use crate::object::meta::as_object;

/// Message nesting; CRD schemas are deep.
const DEEPEST: usize = 100;

/// Unknown messages become empty objects.
pub(super) fn message(name: &str, bytes: &[u8]) -> Result<Value, Malformed> {
    let mut value = Value::Null;
    merge(name, bytes, &mut value, DEEPEST)?;
    Ok(value)
}

/// A field may come in pieces.
fn merge(name: &str, bytes: &[u8], value: &mut Value, depth: usize) -> Result<(), Malformed> {
    let depth = depth.checked_sub(1).ok_or(Malformed::Deep)?;
    let message = messages::message(name);
    if !message.is_some_and(|message| message.fields.values().any(|field| field.location == Location::Whole))
    {
        as_object(value);
    }
    for field in Fields(bytes) {
        let (number, wire) = field?;
        let Some(field) = message.and_then(|message| message.fields.get(&number)) else { continue };
        match (field.location, &field.kind) {
            (Location::Inlined, Kind::Message(inner)) => merge(inner, field.bytes(wire)?, value, depth)?,
            (Location::Inlined, _) => {}
            (Location::Whole, _) => {
                // Each item of a list comes alone.
                if field.many != Many::List || !value.is_array() {
                    *value = Value::Null;
                }
                field.put(wire, value, depth)?;
            }
            (Location::Field(name), _) => {
                let map = as_object(value);
                let target = map.entry(name).or_insert(Value::Null);
                field.put(wire, target, depth)?;
                if field.many == Many::One && !field.keeps_zero && is_zero(target) {
                    map.remove(name);
                }
            }
        }
    }
    Ok(())
}

/// Whether Go omits this non-pointer value.
pub(super) fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(yes) => !yes,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

impl Field {
    fn put(&self, wire: Wire<'_>, target: &mut Value, depth: usize) -> Result<(), Malformed> {
        match self.many {
            Many::One => self.set(wire, target, depth),
            Many::List => {
                if !target.is_array() {
                    *target = Value::Array(Vec::new());
                }
                let Some(items) = target.as_array_mut() else { return Ok(()) };
                if let (Wire::Bytes(packed), Kind::Int32 | Kind::Int64) = (wire, &self.kind) {
                    let mut packed = Fields(packed);
                    while !packed.0.is_empty() {
                        let number = Wire::Varint(packed.varint()?);
                        items.push(self.scalar(number)?);
                    }
                    return Ok(());
                }
                let mut item = Value::Null;
                self.set(wire, &mut item, depth)?;
                items.push(item);
                Ok(())
            }
            Many::Map => {
                let (mut key, mut value) = (String::new(), None);
                for part in Fields(self.bytes(wire)?) {
                    match part? {
                        (1, wire) => key = text(self.bytes(wire)?),
                        (2, wire) => self.set(wire, value.insert(Value::Null), depth)?,
                        _ => {}
                    }
                }
                let value = match value {
                    Some(value) => value,
                    None => self.zero(depth)?,
                };
                as_object(target).insert(key, value);
                Ok(())
            }
        }
    }

    fn set(&self, wire: Wire<'_>, target: &mut Value, depth: usize) -> Result<(), Malformed> {
        match &self.kind {
            Kind::Message(inner) => merge(inner, self.bytes(wire)?, target, depth),
            _ => {
                *target = self.scalar(wire)?;
                Ok(())
            }
        }
    }

    /// Value of an entry with only a key.
    fn zero(&self, depth: usize) -> Result<Value, Malformed> {
        let mut zero = Value::Null;
        self.set(Wire::Bytes(&[]), &mut zero, depth)?;
        Ok(zero)
    }

    fn bytes<'a>(&self, wire: Wire<'a>) -> Result<&'a [u8], Malformed> {
        match wire {
            Wire::Bytes(bytes) => Ok(bytes),
            other => Err(self.mismatch(other)),
        }
    }

    fn scalar(&self, wire: Wire<'_>) -> Result<Value, Malformed> {
        let value = match (&self.kind, wire) {
            (Kind::Text, Wire::Bytes(bytes)) => text(bytes).into(),
            (Kind::Bytes, Wire::Bytes(bytes)) => BASE64_STANDARD.encode(bytes).into(),
            (Kind::Bool, Wire::Varint(number)) => (number != 0).into(),
            // Like Go, truncates.
            (Kind::Int32, Wire::Varint(number)) => int32(number).into(),
            (Kind::Int64, Wire::Varint(number)) => number.cast_signed().into(),
            (Kind::Double, Wire::Fixed64(bits)) => double(f64::from_bits(bits)),
            (Kind::Json, Wire::Bytes([])) => Value::Null,
            (Kind::Json, Wire::Bytes(bytes)) => {
                serde_json::from_slice(bytes).map_err(|error| self.no_value(&error.to_string()))?
            }
            (Kind::Time, Wire::Bytes(bytes)) => self.time(bytes, 0)?,
            (Kind::MicroTime, Wire::Bytes(bytes)) => self.time(bytes, 6)?,
            (Kind::IntOrString, Wire::Bytes(bytes)) => self.int_or_string(bytes)?,
            _ => return Err(self.mismatch(wire)),
        };
        Ok(value)
    }

    /// `digits`: length of the fraction. Unset times are null.
    fn time(&self, bytes: &[u8], digits: usize) -> Result<Value, Malformed> {
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        let (mut seconds, mut nanos) = (0, 0);
        for part in Fields(bytes) {
            match part? {
                (1, Wire::Varint(number)) => seconds = number.cast_signed(),
                (2, Wire::Varint(number)) => nanos = int32(number),
                (1 | 2, other) => return Err(self.mismatch(other)),
                _ => {}
            }
        }
        let nanos = if digits == 0 { 0 } else { nanos };
        let time = Timestamp::new(seconds, nanos).map_err(|_| self.no_value(&seconds.to_string()))?;
        Ok(format!("{time:.digits$}").into())
    }

    fn int_or_string(&self, bytes: &[u8]) -> Result<Value, Malformed> {
        let (mut is_text, mut number, mut string) = (false, 0, String::new());
        for part in Fields(bytes) {
            match part? {
                (1, Wire::Varint(which)) => is_text = which != 0,
                (2, Wire::Varint(given)) => number = int32(given),
                (3, Wire::Bytes(given)) => string = text(given),
                (1..=3, other) => return Err(self.mismatch(other)),
                _ => {}
            }
        }
        Ok(if is_text { string.into() } else { number.into() })
    }

    fn name(&self) -> String {
        match self.location {
            Location::Field(name) => name.to_owned(),
            Location::Inlined | Location::Whole => format!("{:?}", self.kind),
        }
    }

    fn mismatch(&self, wire: Wire<'_>) -> Malformed {
        Malformed::Mismatch(wire.number(), self.name())
    }

    fn no_value(&self, message: &str) -> Malformed {
        Malformed::Value(self.name(), message.to_owned())
    }
}

/// Like Go, replaces invalid UTF-8.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn int32(number: u64) -> i32 {
    let [a, b, c, d, ..] = number.to_le_bytes();
    i32::from_le_bytes([a, b, c, d])
}

fn double(number: f64) -> Value {
    match format!("{number}").parse::<i64>() {
        Ok(whole) => whole.into(),
        Err(_) => number.into(),
    }
}
