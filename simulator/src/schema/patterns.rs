//! Patterns of schemas, compiled once: the same few of a CRD are asked for with every object written.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use parking_lot::Mutex;
use regex::Regex;

/// More than the CRDs of a whole catalog have; with more, all are forgotten and compiled anew.
const MOST: usize = 1024;

static COMPILED: LazyLock<Mutex<HashMap<String, Option<Arc<Regex>>>>> = LazyLock::new(Mutex::default);

/// A pattern as it is matched (one for all: each clone of a `Regex` would get scratch memory of its own); `None` where it is no regular expression.
pub(crate) fn compiled(pattern: &str) -> Option<Arc<Regex>> {
    let mut compiled = COMPILED.lock();
    if let Some(known) = compiled.get(pattern) {
        return known.clone();
    }
    if compiled.len() >= MOST {
        compiled.clear();
    }
    let regex = Regex::new(pattern).ok().map(Arc::new);
    compiled.insert(pattern.to_owned(), regex.clone());
    regex
}
