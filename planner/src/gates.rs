//! What may keep a module from being installed or changed: one gate after the other, and the first that objects decides.
//!
//! Gates are asked whether or not a version was found for the module ([`Choice::outcome`]); one that needs a version passes without.

mod access;
mod central;
mod managed;
mod needs;
mod turns;
mod versions;
mod windows;

pub(super) use central::{REQUIRED, unread};

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use tidewatch_api::{Kyma, KymaSpec, Manifest, ModuleTemplate, State};

use super::{
    mandatory::Offer,
    needs::Waits,
    notice::{About, Notice},
    policy::{PolicyError, Ruled},
    versions::Choice,
    windows::{MIN_WINDOW, Policy},
};

/// What a gate says of a module.
#[derive(Clone, Debug, PartialEq)]
pub enum Gate {
    /// Nothing against it.
    Pass,
    /// What is installed stays as it is, its Manifest too; what is not installed is not installed yet.
    Keep {
        /// The module's state.
        state: State,
        /// Why, and what ends it.
        message: String,
        /// Whether it waits for a maintenance window.
        maintenance: bool,
        /// When to look again, if that is a matter of time.
        retry_at: Option<Timestamp>,
    },
    /// It is removed if it is installed, by the ordinary way; if it is not, it is in Error with the message.
    Remove {
        /// Why.
        message: String,
    },
    /// Nothing is done about it.
    Refuse {
        /// The module's state.
        state: State,
        /// Why, and what ends it.
        message: String,
    },
    /// It is the user's: if it is installed, its objects are given up; then nothing of it is shown but its name and the state.
    Leave {
        /// The module's state.
        state: State,
    },
}

/// What the gates know besides the Kyma and its modules. Central settings, mostly; each has a default that lets pass.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Modules that only Kymas get whom their ModuleReleaseMeta selects.
    pub restricted: &'a [String],
    /// What the central policy says of this Kyma, if there is one; or why it cannot be read.
    pub ruled: Result<Option<&'a Ruled>, &'a PolicyError>,
    /// The policy of maintenance windows, if there is one.
    pub windows: Option<&'a Policy>,
    /// Least time that has to be left of a window for an update to begin in it.
    pub min_window: Duration,
    /// What modules wait for, by their names.
    pub needs: Option<&'a BTreeMap<String, Waits>>,
    /// What installed modules need and have no more, in words, by their names.
    pub gone: Option<&'a BTreeMap<String, String>>,
    /// All mandatory modules. What is installed of one stays until its turn to become the mandatory one.
    pub mandatory: &'a [Arc<Offer>],
    /// When modules, by their names, take part in a rollout that has not reached this Kyma.
    pub turns: Option<&'a BTreeMap<String, Timestamp>>,
    /// Templates of what is installed and not wanted, by their names (see [`super::access::staying`]).
    pub installed: Option<&'a BTreeMap<String, Arc<ModuleTemplate>>>,
    /// Versions of modules that are being removed, in the channels that they had.
    pub leaving: &'a [Choice],
}

impl Default for Facts<'_> {
    fn default() -> Self {
        Self {
            restricted: &[],
            ruled: Ok(None),
            windows: None,
            min_window: MIN_WINDOW,
            needs: None,
            gone: None,
            mandatory: &[],
            turns: None,
            installed: None,
            leaving: &[],
        }
    }
}

/// What a gate looks at.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The user's entry, its channel, its release and the version that was found.
    pub choice: &'a Choice,
    /// The module's Manifest.
    pub installed: Option<&'a Manifest>,
    /// The Kyma in KCP.
    pub kyma: &'a Kyma,
    /// The spec of the runtime's Kyma.
    pub wanted: &'a KymaSpec,
    /// The rest.
    pub facts: &'a Facts<'a>,
    /// Now.
    pub now: Timestamp,
}

/// What a gate says besides its verdict.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Notes {
    /// What the user is told.
    pub notices: Vec<Notice>,
    /// The next time at which a gate may say something else though nothing has changed.
    pub look_at: Option<Timestamp>,
    /// The state, Ready or Warning, and the text of a module that passes and is Ready otherwise.
    pub remark: Option<(State, String)>,
}

impl Notes {
    /// Says something of a module that passes. Of two both are said, with the more serious state.
    pub fn remark(&mut self, state: State, message: String) {
        self.remark = Some(match self.remark.take() {
            None => (state, message),
            Some((before, said)) => {
                (if before == State::Ready { state } else { before }, format!("{said}; {message}"))
            }
        });
    }

    /// Asks for a look at a time, or sooner.
    pub fn look_at(&mut self, at: Timestamp) {
        self.look_at = Some(self.look_at.map_or(at, |before| before.min(at)));
    }
}

/// A gate. May leave notes whatever its verdict.
type Judge = fn(&View<'_>, &mut Notes) -> Gate;

/// In the order in which they are asked. The platform's word, and availability, come before the user's: a module that is to go is not kept
/// by giving it up. A turn comes last: it hides nothing that keeps the module anyway.
const GATES: [Judge; 7] = [
    central::judge,
    access::judge,
    managed::judge,
    versions::judge,
    needs::judge,
    windows::judge,
    turns::judge,
];

/// Asks the gates until one objects.
pub fn judge(view: &View<'_>, notes: &mut Notes) -> Gate {
    let verdict = first(&GATES, view, notes);
    versions::tell(view, &verdict, notes);
    verdict
}

/// Removes a module, and tells its user if there is something to remove.
fn removed(view: &View<'_>, notes: &mut Notes, reason: &'static str, message: String) -> Gate {
    if view.installed.is_some_and(|m| m.metadata.deletion_timestamp.is_none()) {
        notes.notices.push(Notice::warning(
            About::RuntimeKyma,
            reason,
            format!("module '{}' is removed: {message}", view.choice.module.name),
        ));
    }
    Gate::Remove { message }
}

fn first(gates: &[Judge], view: &View<'_>, notes: &mut Notes) -> Gate {
    for gate in gates {
        match gate(view, notes) {
            Gate::Pass => {}
            verdict => {
                if let Gate::Keep { retry_at: Some(at), .. } = &verdict {
                    notes.look_at(*at);
                }
                return verdict;
            }
        }
    }
    Gate::Pass
}

#[cfg(test)]
mod tests;
