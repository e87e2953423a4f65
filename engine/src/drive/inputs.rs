//! What the engine is asked for and told from outside, besides what KCP's watches tell; and a record in place of all that.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::Value;
use tokio::{sync::mpsc, task::JoinHandle};

use super::{Engine, Mode, Shared, numbered};
use crate::{
    journal::{self, Journal, KcpEvent, Line, Trace},
    kcp::{self, Feeds, Inlets, PathReport},
    key::{Cause, WorkKey},
    queue::{Class, Push},
};

impl Engine {
    /// Where inputs are recorded. Whoever changes what is known of KCP from outside says so here.
    pub fn journal(&self) -> &Journal {
        &self.0.journal
    }

    /// Asks for a reconcile, for whoever is neither an agent nor KCP.
    pub fn ask(&self, key: WorkKey, class: Class, cause: Option<Cause>) {
        self.0.journal.note(|| asked(&key, class, cause.as_ref()));
        self.0.queue.push(key, Push { class, cause, guards: Vec::new() });
    }

    /// Says what the way of a runtime's events is worth, and asks for the reconcile that tells it.
    pub fn tell_path(&self, kyma: &str, report: PathReport) {
        let mut state = self.0.state.write();
        self.0.journal.note(|| Line::Path {
            kyma: kyma.to_owned(),
            proven: report.proven,
            reason: report.reason.to_owned(),
            message: report.message.clone(),
        });
        state.tell_path(kyma, report);
        drop(state);
        let push = Push { class: Class::Resync, cause: None, guards: Vec::new() };
        self.0.queue.push(WorkKey::Path { kyma: kyma.to_owned() }, push);
    }

    /// Looks at an agent's configuration and role in its runtime again, and writes what differs. For whoever hears
    /// that the agent works by another configuration than [`KcpState::agent_configuration`](kcp::KcpState::agent_configuration) says.
    pub fn configure_agent(&self, kyma: &str, cause: Option<Cause>) {
        let order = self.0.state.write();
        self.0.journal.note(|| Line::Configure { kyma: kyma.to_owned(), cause: cause_value(cause.as_ref()) });
        self.0.agents.forget(kyma);
        drop(order);
        let push = Push { class: Class::Rollout, cause, guards: Vec::new() };
        self.0.queue.push(WorkKey::Agent { kyma: kyma.to_owned() }, push);
    }

    /// Looks at the whole catalog in a runtime again, and writes what differs. For whoever hears that somebody has changed it there.
    pub fn check_catalog(&self, kyma: &str, cause: Option<Cause>) {
        let order = self.0.state.write();
        self.0.journal.note(|| Line::Catalog { kyma: kyma.to_owned(), cause: cause_value(cause.as_ref()) });
        self.0.catalogs.doubt(kyma, None);
        drop(order);
        let push = Push { class: Class::Catalog, cause, guards: Vec::new() };
        self.0.queue.push(WorkKey::Catalog { kyma: kyma.to_owned() }, push);
    }

    /// What the engine may write. [`Mode::Live`] until it is changed.
    pub fn mode(&self) -> Mode {
        self.0.gate.mode()
    }

    /// Changes what the engine may write. A call that is on its way to an API server meanwhile still gets there, within
    /// [`EngineConfig::call_deadline`](super::EngineConfig::call_deadline). Work that was held is asked for again; its guards have stayed with it.
    pub fn set_mode(&self, mode: Mode) {
        tracing::info!(
            from = self.mode().label(),
            to = mode.label(),
            "what the engine may write has changed"
        );
        let label = mode.label();
        let order = self.0.state.write();
        self.0.journal.note(|| Line::Mode { mode: label.to_owned() });
        let held = self.0.gate.set(mode);
        // Another process may have worked meanwhile, and have been told what would be news to this one.
        self.0.passes.forget();
        self.0.seen.forget();
        self.0.exchanged.forget_all();
        // Each Kyma is to say so, and to say no more so when it is over: then these are among what was held.
        let kymas = if label == Mode::Paused.label() { order.kymas() } else { Vec::new() };
        drop(order);
        let kymas = kymas.into_iter().map(|kyma| WorkKey::Kyma { kyma });
        for key in held.into_iter().chain(kymas) {
            let cause = Some(Cause::Mode { mode: label });
            self.0.queue.push(key, Push { class: Class::Resync, cause, guards: Vec::new() });
        }
    }
}

/// For a replay, in place of [`Engine::run`].
impl Engine {
    pub(super) fn feeds(&self, source: kcp::Source<'_>) -> Feeds {
        let Shared { config, state, queue, journal, .. } = &*self.0;
        Feeds::start(source, config, state, queue, journal)
    }

    /// Watches that tell what is put into the inlets, which are dropped to end them.
    #[must_use]
    pub fn play_feeds(&self) -> (Feeds, BTreeMap<String, mpsc::Sender<KcpEvent>>) {
        let mut inlets = Inlets::default();
        let feeds = self.feeds(kcp::Source::Played(&mut inlets));
        (feeds, inlets.into_senders())
    }

    /// Does the reconcile of a key as number `work` of the record. `Err` if nothing has asked for it, within `slack` of the
    /// time; it is done all the same. The task says what it was done for, and ends with it. `why`, the causes in the record and how
    /// many there were, is what the reconcile goes by, as it may look at less for some causes than for others: whether an event came
    /// just before a begin or just after it is the record's to say. Without any, it goes by what has asked for it here.
    #[must_use]
    pub fn play(&self, key: &WorkKey, work: u64, why: (Vec<Cause>, usize), slack: Duration) -> Played {
        let taken = self.0.queue.take(key, slack);
        let was_asked = taken.is_some();
        let lease = taken.or_else(|| {
            self.0.queue.push(key.clone(), Push { class: Class::Retry, cause: None, guards: Vec::new() });
            self.0.queue.take(key, slack)
        });
        let causes = lease.as_ref().map(numbered).unwrap_or_default();
        let (count, repeats) = lease.as_ref().map_or((0, 0), |lease| (lease.cause_count, lease.repeats));
        let task = lease.map(|mut lease| {
            if !why.0.is_empty() {
                (lease.causes, lease.cause_count) = why;
            }
            tokio::spawn(journal::within(Some(Trace::new(work)), Arc::clone(&self.0).work(lease)))
        });
        Played { was_asked, causes, count, repeats, task }
    }
}

/// A reconcile of a record that is done again.
#[derive(Debug)]
pub struct Played {
    /// Whether something has asked for it.
    pub was_asked: bool,
    /// What has; the first few.
    pub causes: Vec<Cause>,
    /// How many causes there were.
    pub count: usize,
    /// How often one of them came again.
    pub repeats: usize,
    /// Its task; `None` if the key is still worked on.
    pub task: Option<JoinHandle<()>>,
}

/// The line of a record that says that a key's work was asked for.
pub(super) fn asked(key: &WorkKey, class: Class, cause: Option<&Cause>) -> Line {
    Line::Push { key: key.into(), class: class.label().to_owned(), cause: cause_value(cause) }
}

fn cause_value(cause: Option<&Cause>) -> Option<Value> {
    cause.and_then(|cause| serde_json::to_value(cause).ok())
}
