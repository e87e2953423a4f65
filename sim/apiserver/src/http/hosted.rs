//! A served cluster and its users.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
};

use jiff::{SignedDuration, Timestamp};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::{tls::Subject, totals::RequestTotals};
use crate::{
    authz::{CREDENTIAL_ID, User},
    store::{Cluster, Outcome, Request},
};

/// A bearer token, hidden in `Debug`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Token(pub String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// A served cluster.
#[derive(Debug)]
pub struct Hosted {
    name: String,
    cluster: Mutex<Cluster>,
    /// Revision that watches wait for.
    changed: watch::Sender<u64>,
    /// Number of interruptions.
    interrupted: watch::Sender<u64>,
    /// Clock offset in seconds.
    skew: AtomicI64,
    tokens: RwLock<HashMap<Token, Arc<User>>>,
    /// By common name.
    certificates: RwLock<HashMap<String, Arc<User>>>,
    /// Whether other certificates are accepted.
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

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Accepts a token besides those of `ServiceAccounts`.
    pub fn allow_token(&self, token: Token, user: User) {
        self.tokens.write().insert(token, Arc::new(user));
    }

    /// Revokes a token.
    pub fn revoke_token(&self, token: &Token) {
        self.tokens.write().remove(token);
    }

    /// Accepts a common name signed by the server's CA.
    pub fn allow_certificate(&self, common_name: &str, user: User) {
        self.certificates.write().insert(common_name.to_owned(), Arc::new(user));
    }

    /// `now` is by other clocks.
    pub(crate) fn by_token(&self, token: &str, now: Timestamp) -> Option<Arc<User>> {
        let known = self.tokens.read().get(&Token(token.to_owned())).cloned();
        known.or_else(|| self.cluster.lock().user_of_token(token, self.now(now)).map(Arc::new))
    }

    /// Accepts every certificate of the server's CA, as Kubernetes does: common name, organizations as
    /// groups, RBAC rights.
    pub fn allow_certificates(&self) {
        self.any_certificate.store(true, Ordering::Relaxed);
    }

    pub(crate) fn by_certificate(&self, subject: &Subject) -> Option<Arc<User>> {
        let Subject { common_name, organizations, fingerprint } = subject;
        if let Some(user) = self.certificates.read().get(common_name) {
            return Some(Arc::clone(user));
        }
        let groups: Vec<&str> = organizations.iter().map(String::as_str).collect();
        let any = self.any_certificate.load(Ordering::Relaxed);
        let extra = BTreeMap::from([(CREDENTIAL_ID.to_owned(), vec![format!("X509SHA256={fingerprint}")])]);
        any.then(|| Arc::new(User { extra, ..User::by_rbac(common_name, &groups) }))
    }

    /// Applies a request without HTTP; `now` is by other clocks.
    pub fn apply(&self, request: &Request, now: Timestamp) -> Outcome {
        // Locked: the skew may change concurrently.
        self.with(|cluster| cluster.apply(request, self.now(now)))
    }

    /// Counts an answered request.
    pub(crate) fn count(&self, request: &Request) {
        self.requests.count(request);
    }

    /// `apiserver_request_total` in Prometheus' format.
    pub(crate) fn request_totals(&self) -> String {
        self.requests.text()
    }

    /// Next due work, by other clocks.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        let by_other_clocks = |at: Timestamp| at.saturating_sub(self.skew()).unwrap_or(at);
        self.with(|cluster| cluster.next_due().map(by_other_clocks))
    }

    /// Locks the cluster, then notifies watches. Must be fast.
    pub fn with<T>(&self, work: impl FnOnce(&mut Cluster) -> T) -> T {
        let mut cluster = self.cluster.lock();
        let result = work(&mut cluster);
        let revision = cluster.revision();
        drop(cluster);
        self.changed.send_if_modified(|known| std::mem::replace(known, revision) != revision);
        result
    }

    /// Ends open watches and hanging requests, like a restart.
    pub fn interrupt(&self) {
        self.interrupted.send_modify(|count| *count += 1);
    }

    /// Offsets the clock by whole seconds. Due work keeps its real time: controllers use another clock.
    pub fn set_skew(&self, skew: SignedDuration) {
        self.with(|cluster| {
            let before = self.skew.swap(skew.as_secs(), Ordering::Relaxed);
            cluster.shift_due(SignedDuration::from_secs(skew.as_secs().saturating_sub(before)));
        });
    }

    /// Converts from other clocks.
    pub fn now(&self, now: Timestamp) -> Timestamp {
        now.saturating_add(self.skew()).unwrap_or(now)
    }

    fn skew(&self) -> SignedDuration {
        SignedDuration::from_secs(self.skew.load(Ordering::Relaxed))
    }

    /// Receives later interruptions.
    pub(crate) fn interruptions(&self) -> watch::Receiver<u64> {
        self.interrupted.subscribe()
    }

    /// Receives revisions.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}
