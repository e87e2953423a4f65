//! One simulated cluster: requests in, answers out.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{
    controllers::{self, api_services},
    delete, read,
    refusal::Refusal,
    request::{Outcome, Request},
    reviews, scale,
    state::{Options, State},
    target::{Target, Verb},
    tokens,
    watch::{self, WatchEvent, Watching},
    write::Write,
};
use crate::{
    authz::{Ask, User},
    kinds::Kind,
};

/// A simulated cluster.
#[derive(Debug)]
pub struct Cluster(State);

impl Cluster {
    /// Creates a cluster with its initial namespaces.
    pub fn new(options: Options, now: Timestamp) -> Self {
        Self(State::new(options, now))
    }

    /// Revision of the last change.
    pub fn revision(&self) -> u64 {
        self.0.objects.revision()
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.0.objects.len()
    }

    /// Whether the cluster has no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops changes up to `revision`; older watches and pages get 410.
    pub fn forget(&mut self, revision: u64) {
        self.0.objects.forget(revision);
    }

    /// Time of the next delayed work.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.0.schedule.next()
    }

    /// Shifts due times with the cluster's clock.
    pub(crate) fn shift_due(&mut self, by: SignedDuration) {
        self.0.schedule.shift(by);
    }

    /// Sets the key that signs tokens of `ServiceAccounts`; without it, they are not simulated.
    pub fn sign_tokens_with(&mut self, key: [u8; 32]) {
        self.0.token_key = Some(key);
    }

    /// User of a valid token of a `ServiceAccount`.
    pub(crate) fn user_of_token(&self, token: &str, now: Timestamp) -> Option<User> {
        tokens::user(&self.0, token, now)
    }

    /// Whether to stop workloads from becoming ready. Ready ones stay so.
    pub fn withhold_readiness(&mut self, withhold: bool) {
        self.0.withholds_readiness = withhold;
    }

    /// Runs due work and its consequences.
    pub fn run_due(&mut self, now: Timestamp) {
        controllers::run(&mut self.0, now);
    }

    /// Applies a request and runs the controllers that react at once.
    pub fn apply(&mut self, request: &Request, now: Timestamp) -> Outcome {
        let outcome = self.answer(request, now).into();
        if request.verb.writes() {
            self.run_due(now);
        }
        outcome
    }

    fn answer(&mut self, request: &Request, now: Timestamp) -> Result<Outcome, Refusal> {
        let target = &request.target;
        if !request.user.may_all() {
            self.authorize(&request.user, &Ask::of(request.verb.name(), target, &request.query))?;
        }
        let state = &mut self.0;
        if let Some(review) = reviews::review(state, request)? {
            return Ok(review);
        }
        let kind = &state.served.find(target).ok_or_else(Refusal::unknown_path)?;
        check_shape(kind, target, &request.verb)?;
        match &request.verb {
            Verb::Get if target.subresource == "scale" => scale::get(state, kind, target),
            Verb::Get => read::get(state, kind, request),
            Verb::List => read::list(state, kind, request),
            Verb::Watch => {
                watch::start(state, kind, target, &request.query).map(|watch| Outcome::Watch(Box::new(watch)))
            }
            Verb::Create(body) if target.subresource == "token" => {
                tokens::create(state, kind, request, body, now)
            }
            Verb::Create(_) | Verb::Update(_) | Verb::Patch(..) => Write::run(state, kind, request, now),
            Verb::Delete(options) => delete::delete(state, kind, request, options, now),
            Verb::DeleteCollection(options) => delete::delete_collection(state, kind, request, options, now),
        }
    }

    pub(crate) fn authorize(&mut self, user: &User, ask: &Ask) -> Result<(), Refusal> {
        self.0.rights.authorize(&self.0.objects, user, ask)
    }

    pub(crate) fn find(&self, target: &Target) -> Option<Arc<Kind>> {
        self.0.served.find(target)
    }

    pub(crate) fn kinds(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.0.served.kinds()
    }

    pub(crate) fn serves(&self, group: &str, version: &str) -> bool {
        self.0.served.has_group_version(group, version)
    }

    /// Group versions delegated to Services.
    pub(crate) fn delegated(&self) -> impl Iterator<Item = (String, String)> {
        api_services::delegated(&self.0)
    }

    /// Returns up to `limit` events. [`EventType::Error`](super::EventType::Error) ends the watch.
    pub fn poll(&self, watching: &mut Watching, limit: usize) -> Vec<WatchEvent> {
        watch::poll(&self.0, watching, limit)
    }
}

/// Refuses verbs that the path does not support.
pub(crate) fn check_shape(kind: &Kind, target: &Target, verb: &Verb) -> Result<(), Refusal> {
    if !kind.namespaced && !target.namespace.is_empty() {
        return Err(Refusal::unknown_path());
    }
    match target.subresource.as_str() {
        "" => {}
        "status" if kind.has_status => {}
        "scale" if kind.scale.is_some() => {}
        "approval" if kind.has_approval() => {}
        "token" if kind.has_tokens() => {}
        _ if !target.is_simulated() => return Err(target.not_simulated()),
        _ if !kind.is_builtin() => return Err(Refusal::not_found(kind, &target.name)),
        _ => return Err(Refusal::unknown_path()),
    }
    let whole = target.name.is_empty();
    let fits = match verb {
        Verb::Create(_) if target.subresource == "token" => true,
        _ if target.subresource == "token" => false,
        Verb::Get | Verb::Update(_) | Verb::Patch(..) => !whole,
        Verb::Delete(_) => !whole && target.subresource.is_empty(),
        Verb::List => whole,
        Verb::Watch => true,
        // Only in one namespace.
        Verb::DeleteCollection(_) | Verb::Create(_) => {
            whole && (!kind.namespaced || !target.namespace.is_empty())
        }
    };
    let namespaced_name = whole || !kind.namespaced || !target.namespace.is_empty();
    if matches!(verb, Verb::DeleteCollection(_)) && kind.plural == "namespaces" && kind.group.is_empty() {
        return Err(Refusal::method_not_allowed());
    }
    if fits && namespaced_name { Ok(()) } else { Err(Refusal::method_not_allowed()) }
}
