//! Texts that many have in common, held once.

use std::{collections::HashMap, sync::Arc};

/// Texts by number, each held once, and how often. Runtimes have the same modules, and so the same names.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    numbers: HashMap<Arc<str>, u32>,
    held: Vec<Option<(Arc<str>, u32)>>,
    free: Vec<u32>,
}

/// A place as a number. Nobody has room for 2^32 of them.
pub(crate) fn as_number(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}

impl Texts {
    pub(crate) fn number(&self, text: &str) -> Option<u32> {
        self.numbers.get(text).copied()
    }

    /// The number of a text, which counts once more from now on.
    pub(crate) fn hold(&mut self, text: &str) -> u32 {
        if let Some(number) = self.number(text) {
            self.hold_again(number);
            return number;
        }
        let held: Arc<str> = text.into();
        let entry = Some((Arc::clone(&held), 1));
        let number = if let Some(number) = self.free.pop() {
            if let Some(slot) = self.held.get_mut(number as usize) {
                *slot = entry;
            }
            number
        } else {
            self.held.push(entry);
            as_number(self.held.len() - 1)
        };
        self.numbers.insert(held, number);
        number
    }

    /// A text that is held counts once more.
    pub(crate) fn hold_again(&mut self, number: u32) {
        if let Some(Some((_, count))) = self.held.get_mut(number as usize) {
            *count += 1;
        }
    }

    /// A text counts once less from now on; nobody holds it any more after the last time.
    pub(crate) fn let_go(&mut self, number: u32) {
        let Some(slot) = self.held.get_mut(number as usize) else { return };
        let Some((text, count)) = slot else { return };
        *count -= 1;
        if *count == 0 {
            self.numbers.remove(text);
            *slot = None;
            self.free.push(number);
        }
    }

    /// A text that is held.
    pub(crate) fn text(&self, number: u32) -> &str {
        self.held.get(number as usize).and_then(Option::as_ref).map_or("", |(text, _)| text)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.numbers.is_empty() && self.free.len() == self.held.len()
    }
}
