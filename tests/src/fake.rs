//! A control plane on the fake API server, in this process.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    thread,
};

use anyhow::{Context, Result};
use jiff::SignedDuration;
use parking_lot::Mutex;
use tidewatch_drain::Drain;
use tidewatch_fake_apiserver::{
    Fault, Hosted, Options as ClusterOptions, Server, ServerOptions, Token, User as Caller, registry,
    script::{Rule, RuleId, Script},
};
use tokio::runtime::Handle;

use crate::cluster::{ADMIN, Options, User};

/// Time for a workload to become ready, similar to the controllers and kwok.
const READY_AFTER: SignedDuration = SignedDuration::from_millis(300);

/// The servers' tokio runtime. It outlives the test that starts them.
fn servers() -> Result<&'static Handle> {
    static SERVERS: OnceLock<Option<Handle>> = OnceLock::new();
    let start = || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().ok()?;
        let handle = runtime.handle().clone();
        let forever = move || runtime.block_on(std::future::pending::<()>());
        thread::Builder::new().name("fake-servers".to_owned()).spawn(forever).ok()?;
        Some(handle)
    };
    SERVERS.get_or_init(start).as_ref().context("cannot start the thread of the fake API servers")
}

/// A fake API server with its own CA, port and users.
#[derive(Debug)]
pub(crate) struct Fake {
    server: Server,
    hosted: Arc<Hosted>,
    pub(crate) url: String,
    tokens: BTreeMap<String, String>,
    script: Arc<Script>,
    /// The active outage fault.
    outage: Mutex<Option<RuleId>>,
    drain: Drain,
}

impl Fake {
    pub(crate) async fn start(options: Options) -> Result<Self> {
        servers()?.spawn(Self::serve(options)).await.context("the fake API server panicked at its start")?
    }

    async fn serve(options: Options) -> Result<Self> {
        let Options { name, pods, users } = options;
        let (drain, script) = (Drain::new(), Arc::new(Script::new(1)));
        let faults = Arc::clone(&script) as _;
        let server = Server::start(ServerOptions { faults, ..ServerOptions::default() }, &drain).await?;
        let cluster = ClusterOptions {
            seed: seed(&name),
            ready_after: Some(READY_AFTER),
            runs_pods: pods,
            // The CRD of ModuleReleaseMeta has CEL rules.
            ignore_cel: true,
            // A short log would answer 410 to tests that wait for old events.
            log_limit: 10_000,
            ..ClusterOptions::default()
        };
        let hosted = server.add(&name, cluster)?;
        let url = format!("https://{}", server.listen(&name).await?);
        let mut tokens = BTreeMap::new();
        let mut admit = |name: &str, caller: Caller| {
            let token = uuid::Uuid::new_v4().simple().to_string();
            hosted.allow_token(Token(token.clone()), caller);
            tokens.insert(name.to_owned(), token);
        };
        admit(ADMIN, Caller::admin(ADMIN));
        for User { name, groups } in &users {
            let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
            admit(name, Caller::by_rbac(name, &groups));
        }
        Ok(Self { server, hosted, url, tokens, script, outage: Mutex::new(None), drain })
    }

    pub(crate) fn ca_pem(&self) -> &str {
        self.server.ca_pem()
    }

    pub(crate) fn token(&self, user: &str) -> Option<&str> {
        self.tokens.get(user).map(String::as_str)
    }

    /// Closes all connections and answers nothing.
    pub(crate) fn kill(&self) {
        self.fail(Fault::Drop);
        self.hosted.interrupt();
    }

    /// Answers nothing, but keeps connections open.
    pub(crate) fn freeze(&self) {
        self.fail(Fault::Lost);
    }

    /// Answers again. Pending requests stay unanswered, so clients must retry.
    pub(crate) fn recover(&self) {
        if let Some(rule) = self.outage.lock().take() {
            self.script.remove(rule);
        }
        self.hosted.interrupt();
    }

    fn fail(&self, fault: Fault) {
        let rule = self.script.add(Rule::always(fault));
        if let Some(before) = self.outage.lock().replace(rule) {
            self.script.remove(before);
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.drain.begin();
    }
}

/// A seed per name gives each cluster other uids.
fn seed(name: &str) -> u64 {
    name.bytes().fold(0, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()))
}

pub(crate) async fn registry() -> Result<registry::Registry> {
    let start = async {
        // The registry lives as long as this process.
        registry::Registry::start(&Drain::new()).await
    };
    Ok(servers()?.spawn(start).await.context("the fake registry panicked at its start")??)
}
