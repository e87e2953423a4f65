//! Requests and answers.

use std::sync::Arc;

use serde_json::Value;

use super::{
    refusal::Refusal,
    render::render,
    target::{Query, Target, Verb},
    watch::Watching,
};
use crate::{authz::User, kinds::Kind, object::Stored};

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    /// User.
    pub user: Arc<User>,
    /// `User-Agent` program: the default field manager.
    pub agent: String,
    /// Action.
    pub verb: Verb,
    /// Target.
    pub target: Target,
    /// Query.
    pub query: Query,
}

/// A result.
#[derive(Debug)]
pub enum Outcome {
    /// An object.
    Object(Answer),
    /// A list.
    List(Listed),
    /// A watch, read by [`Cluster::poll`](super::Cluster::poll).
    Watch(Box<Watching>),
    /// An error.
    Refused(Box<Refusal>),
}

/// A single-object answer.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status.
    pub code: u16,
    /// Object or `Status`.
    pub object: Value,
    /// `Warning` headers.
    pub warnings: Vec<String>,
    pub(crate) kind: Option<Arc<Kind>>,
}

/// A list page.
#[derive(Debug)]
pub struct Listed {
    /// Objects.
    pub items: Vec<Value>,
    /// List revision.
    pub revision: u64,
    /// Continue token; empty at the end.
    pub next: String,
    /// Objects on later pages.
    pub remaining: Option<usize>,
    pub(crate) kind: Arc<Kind>,
}

impl From<Result<Outcome, Refusal>> for Outcome {
    fn from(result: Result<Outcome, Refusal>) -> Self {
        result.unwrap_or_else(|refusal| Self::Refused(Box::new(refusal)))
    }
}

/// Answers with a stored object.
pub(super) fn answer_with(kind: &Arc<Kind>, stored: &Stored, code: u16, warnings: Vec<String>) -> Outcome {
    answer_object(kind, render(kind, stored), code, warnings)
}

/// Answers with a rendered object.
pub(super) fn answer_object(kind: &Arc<Kind>, object: Value, code: u16, warnings: Vec<String>) -> Outcome {
    Outcome::Object(Answer { code, object, warnings, kind: Some(Arc::clone(kind)) })
}
