use std::hash::{Hash, Hasher};

/// A value that decides nothing. Equality ignores it, which keeps a model's states few.
#[derive(Clone, Debug, Default)]
pub(super) struct Aside<T>(pub(super) T);

impl<T> PartialEq for Aside<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Eq for Aside<T> {}

impl<T> Hash for Aside<T> {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}
