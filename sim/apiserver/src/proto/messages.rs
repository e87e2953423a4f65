//! Numbers, names and types of fields.

use std::{
    collections::{BTreeMap, HashMap},
    sync::LazyLock,
};

/// The file describes its format.
const MESSAGES: &str = include_str!("messages.txt");

static TABLE: LazyLock<HashMap<&'static str, Message>> = LazyLock::new(|| read(MESSAGES));

#[derive(Debug, Default)]
pub(super) struct Message {
    pub(super) fields: BTreeMap<u64, Field>,
}

#[derive(Debug)]
pub(super) struct Field {
    pub(super) location: Location,
    pub(super) many: Many,
    pub(super) kind: Kind,
    /// Whether JSON keeps a zero, as for pointers.
    pub(super) keeps_zero: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Location {
    Field(&'static str),
    /// Merged into the message's own fields.
    Inlined,
    Whole,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Many {
    One,
    List,
    Map,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    /// Base64 in JSON.
    Bytes,
    Bool,
    Int32,
    Int64,
    Double,
    Json,
    /// In seconds.
    Time,
    /// In microseconds.
    MicroTime,
    IntOrString,
    Message(String),
}

pub(super) fn message(name: &str) -> Option<&'static Message> {
    TABLE.get(name)
}

pub(super) fn short(definition: &str) -> &str {
    let without = |prefix| definition.strip_prefix(prefix);
    without("io.k8s.api.").or_else(|| without("io.k8s.")).unwrap_or(definition)
}

fn read(text: &'static str) -> HashMap<&'static str, Message> {
    let mut table: HashMap<&str, Message> = HashMap::new();
    let mut current = "";
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if !line.starts_with(' ') {
            current = line;
            table.entry(current).or_default();
            continue;
        }
        let mut words = line.split_whitespace();
        let (Some(number), Some(name), Some(of)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let Ok(number) = number.parse() else { continue };
        let package = current.rsplit_once('.').map_or("", |(package, _)| package);
        table.entry(current).or_default().fields.insert(number, Field::new(name, of, package));
    }
    table
}

impl Field {
    fn new(name: &'static str, of: &'static str, package: &str) -> Self {
        let location = match name {
            "." => Location::Inlined,
            "=" => Location::Whole,
            name => Location::Field(name),
        };
        let (keeps_zero, of) = of.strip_prefix('*').map_or((false, of), |of| (true, of));
        let (many, of) = match (of.strip_prefix("[]"), of.strip_prefix("{}")) {
            (Some(of), _) => (Many::List, of),
            (None, Some(of)) => (Many::Map, of),
            (None, None) => (Many::One, of),
        };
        Self { location, many, kind: Kind::of(of, package), keeps_zero }
    }
}

impl Kind {
    fn of(word: &str, package: &str) -> Self {
        match word {
            "string" => Self::Text,
            "bytes" => Self::Bytes,
            "bool" => Self::Bool,
            "int32" => Self::Int32,
            "int64" => Self::Int64,
            "double" => Self::Double,
            "json" => Self::Json,
            "time" => Self::Time,
            "micro-time" => Self::MicroTime,
            "int-or-string" => Self::IntOrString,
            name if name.contains('.') => Self::Message(name.to_owned()),
            name => Self::Message(format!("{package}.{name}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kinds::builtin,
        schema::{View, builtin::view},
    };

    /// `None`: the value is no object.
    fn flat(name: &str) -> Option<BTreeMap<&'static str, &'static Field>> {
        let mut all = BTreeMap::new();
        for field in message(name).unwrap_or_else(|| panic!("there is no message {name}")).fields.values() {
            match (field.location, &field.kind) {
                (Location::Whole, _) => return None,
                (Location::Inlined, Kind::Message(inner)) => all.extend(flat(inner)?),
                (Location::Inlined, _) => panic!("{name} has no fields to inline"),
                (Location::Field(own), _) => _ = all.insert(own, field),
            }
        }
        Some(all)
    }

    fn check(name: &str, schema: View<'_>, seen: &mut Vec<String>) {
        let Some(fields) = flat(name) else { return };
        for known in schema.properties().into_iter().flatten().map(|(known, _)| known) {
            let in_envelope = matches!(known.as_str(), "apiVersion" | "kind");
            assert!(in_envelope || fields.contains_key(known.as_str()), "{name} lacks {known}");
        }
        for (field, of) in fields {
            let at = schema.property(field).unwrap_or_else(|| panic!("{name} has no field {field}"));
            let at = match of.many {
                Many::One => at,
                Many::List => at.items(),
                Many::Map => at.additional().unwrap(),
            };
            if let Kind::Message(inner) = &of.kind
                && !seen.contains(inner)
            {
                seen.push(inner.clone());
                check(inner, at, seen);
            }
        }
    }

    #[test]
    fn every_protobuf_field_is_in_its_definition() {
        let mut seen = Vec::new();
        let subresources = [builtin::scale(), builtin::token_request()];
        for kind in builtin::kinds().iter().map(AsRef::as_ref).chain(subresources) {
            let crate::kinds::Origin::Builtin(definition) = kind.origin else { continue };
            check(short(definition), view(definition), &mut seen);
        }
        assert!(seen.len() > 150, "{}", seen.len());
    }

    #[test]
    fn every_referenced_message_exists() {
        for (name, message) in TABLE.iter() {
            for field in message.fields.values() {
                if let Kind::Message(inner) = &field.kind {
                    assert!(TABLE.contains_key(inner.as_str()), "{name} names {inner}");
                }
            }
        }
    }
}
