//! A cluster that is served, and who may ask it.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
};

use jiff::{SignedDuration, Timestamp};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::totals::RequestTotals;
use crate::{
    authz::User,
    store::{Cluster, Outcome, Request},
};

/// A bearer token. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Token(pub String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// A cluster that is served.
#[derive(Debug)]
pub struct Hosted {
    name: String,
    cluster: Mutex<Cluster>,
    /// The revision, for watches that wait for more.
    changed: watch::Sender<u64>,
    /// How often what was open has been ended.
    interrupted: watch::Sender<u64>,
    /// What its clock is ahead of the others, in seconds.
    skew: AtomicI64,
    tokens: RwLock<HashMap<Token, Arc<User>>>,
    /// By the common name of their certificate.
    certificates: RwLock<HashMap<String, Arc<User>>>,
    /// Whether others with a certificate are let in, too.
    any_certificate: AtomicBool,
    requests: RequestTotals,
}

impl Hosted {
    pub(crate) fn new(name: &str, cluster: Cluster) -> Self {
        let changed = watch::Sender::new(cluster.revision());
        Self {
            name: name.to_owned(),
            cluster: Mutex::new(cluster),
            changed,
            interrupted: watch::Sender::new(0),
            skew: AtomicI64::new(0),
            tokens: RwLock::default(),
            certificates: RwLock::default(),
            any_certificate: AtomicBool::new(false),
            requests: RequestTotals::default(),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Lets somebody in who shows this token.
    pub fn allow_token(&self, token: Token, user: User) {
        self.tokens.write().insert(token, Arc::new(user));
    }

    /// Lets nobody in with this token any more.
    pub fn revoke_token(&self, token: &Token) {
        self.tokens.write().remove(token);
    }

    /// Lets somebody in who shows a certificate of the server's client CA with this common name.
    pub fn allow_certificate(&self, common_name: &str, user: User) {
        self.certificates.write().insert(common_name.to_owned(), Arc::new(user));
    }

    pub(crate) fn by_token(&self, token: &str) -> Option<Arc<User>> {
        self.tokens.read().get(&Token(token.to_owned())).cloned()
    }

    /// Lets in whoever shows a certificate of the server's client CA, as real API servers do: the common name is the user, the
    /// organizations are the groups, and what they may do RBAC objects say.
    pub fn allow_certificates(&self) {
        self.any_certificate.store(true, Ordering::Relaxed);
    }

    pub(crate) fn by_certificate(&self, common_name: &str, organizations: &[String]) -> Option<Arc<User>> {
        if let Some(user) = self.certificates.read().get(common_name) {
            return Some(Arc::clone(user));
        }
        let groups: Vec<&str> = organizations.iter().map(String::as_str).collect();
        let any = self.any_certificate.load(Ordering::Relaxed);
        any.then(|| Arc::new(User::by_rbac(common_name, &groups)))
    }

    /// Does what is asked, as if it had come by HTTP, when other clocks show `now`.
    pub fn apply(&self, request: &Request, now: Timestamp) -> Outcome {
        // With the cluster in hand: its clock may be set at the same time.
        self.with(|cluster| cluster.apply(request, self.now(now)))
    }

    /// Counts a request that is about to be answered.
    pub(crate) fn count(&self, request: &Request) {
        self.requests.count(request);
    }

    /// The metric `apiserver_request_total` in Prometheus' text form.
    pub(crate) fn request_totals(&self) -> String {
        self.requests.text()
    }

    /// When there is something to be done next, by other clocks.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        let by_other_clocks = |at: Timestamp| at.saturating_sub(self.skew()).unwrap_or(at);
        self.with(|cluster| cluster.next_due().map(by_other_clocks))
    }

    /// Works on the cluster; watches hear of what changes. Holds its lock: nothing slow.
    pub fn with<T>(&self, work: impl FnOnce(&mut Cluster) -> T) -> T {
        let mut cluster = self.cluster.lock();
        let result = work(&mut cluster);
        let revision = cluster.revision();
        drop(cluster);
        self.changed.send_if_modified(|known| std::mem::replace(known, revision) != revision);
        result
    }

    /// Ends every open watch, and every request that hangs: as a restart of the API server does.
    pub fn interrupt(&self) {
        self.interrupted.send_modify(|count| *count += 1);
    }

    /// Sets the cluster's clock ahead of all others, or behind them; whole seconds. What is due is done when it would have been: a
    /// controller does not wait by that clock.
    pub fn set_skew(&self, skew: SignedDuration) {
        self.with(|cluster| {
            let before = self.skew.swap(skew.as_secs(), Ordering::Relaxed);
            cluster.shift_due(SignedDuration::from_secs(skew.as_secs().saturating_sub(before)));
        });
    }

    /// What its clock shows when others show `now`.
    pub fn now(&self, now: Timestamp) -> Timestamp {
        now.saturating_add(self.skew()).unwrap_or(now)
    }

    fn skew(&self) -> SignedDuration {
        SignedDuration::from_secs(self.skew.load(Ordering::Relaxed))
    }

    /// Changes with every [`Hosted::interrupt`] from now on.
    pub(crate) fn interruptions(&self) -> watch::Receiver<u64> {
        self.interrupted.subscribe()
    }

    /// Changes with every change of the cluster: its revision.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}
