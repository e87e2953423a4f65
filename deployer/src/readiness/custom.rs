//! Custom resources: by `status.state` or by their conditions.

use serde_json::Value;
use tidewatch_api::{State, readiness::CrState};

use super::{
    Says,
    seen::{Condition, Seen, UNSEEN},
    text,
};

/// Conditions that say as a whole whether an object is ready; the first that is there counts.
const READY: [&str; 5] = ["Ready", "Available", "Healthy", "Programmed", "Succeeded"];
/// Conditions that say that it will not get there by itself.
const STUCK: [&str; 2] = ["Stalled", "Failed"];

/// The state that a module's custom resource tells: that in `status.state`, else what its conditions mean.
///
/// `None` is a resource that is not there. Warning is told as it is: usable, but the user has to do something.
/// A resource whose status speaks of an older generation is Processing. Has no deadline: a resource of the
/// user's may be on its way for as long as its operator needs.
#[must_use]
pub fn module_cr(cr: Option<&Value>) -> CrState {
    let say = |state, message: String| CrState { state, message };
    let Some(cr) = cr.map(Seen) else { return say(State::Empty, String::new()) };
    if cr.is_leaving() {
        return say(State::Deleting, why(cr).unwrap_or_default());
    }
    if cr.is_behind() {
        return say(State::Processing, UNSEEN.to_owned());
    }
    match told(cr) {
        Some(State::Ready) => say(State::Ready, String::new()),
        Some(state) => say(state, why(cr).unwrap_or_default()),
        None => match by_conditions(cr) {
            Says::Ready => say(State::Ready, String::new()),
            Says::Processing(text) | Says::Blocked(text) => say(State::Processing, text),
            Says::Warning(text) => say(State::Warning, text),
            Says::Error(text) => say(State::Error, text),
            Says::Unknown => say(State::Empty, String::new()),
        },
    }
}

/// Ready: its state says so (a warning is for the user, it serves), or its conditions do. Unknown: it tells nothing.
pub(super) fn says(object: Seen<'_>) -> Says {
    let why = |state: State| match why(object) {
        Some(why) => format!("its state is {state}: {why}"),
        None => format!("its state is {state}"),
    };
    match told(object) {
        Some(State::Ready | State::Warning) => Says::Ready,
        Some(state @ State::Error) => Says::Error(why(state)),
        Some(state) => Says::Processing(why(state)),
        None => by_conditions(object),
    }
}

/// The state in its status, if it is one that modules use.
fn told(object: Seen<'_>) -> Option<State> {
    let state = State::parse(object.status()["state"].as_str()?)?;
    matches!(state, State::Ready | State::Warning | State::Processing | State::Error | State::Deleting)
        .then_some(state)
}

fn by_conditions(object: Seen<'_>) -> Says {
    if let Some((type_, stuck)) =
        STUCK.into_iter().find_map(|t| object.condition(t).filter(Condition::holds).map(|c| (t, c)))
    {
        return Says::Error(because(&format!("its condition {type_} holds"), stuck.reason, stuck.message));
    }
    let Some((type_, ready)) = READY.into_iter().find_map(|t| object.condition(t).map(|c| (t, c))) else {
        return Says::Unknown;
    };
    if ready.holds() {
        Says::Ready
    } else if ready.stale {
        Says::Processing(UNSEEN.to_owned())
    } else {
        Says::Processing(because(
            &format!("its condition {type_} does not hold"),
            ready.reason,
            ready.message,
        ))
    }
}

/// What the object says about its state: its failing condition, else the state's description.
fn why(object: Seen<'_>) -> Option<String> {
    let failing = READY.into_iter().find_map(|t| object.condition(t).filter(Condition::fails));
    let text = match failing {
        Some(condition) => because("", condition.reason, condition.message),
        None => {
            let described = ["description", "message"].into_iter().find_map(|f| object.status()[f].as_str());
            text::tame(described.unwrap_or_default())
        }
    };
    (!text.is_empty()).then_some(text)
}

/// `what (reason): message`, with what is there.
fn because(what: &str, reason: &str, message: &str) -> String {
    let (reason, message) = (text::name(reason), text::tame(message));
    let head = match (what, reason.as_str()) {
        (what, "") => what.to_owned(),
        ("", reason) => reason.to_owned(),
        (what, reason) => format!("{what} ({reason})"),
    };
    match (head.as_str(), message.as_str()) {
        (_, "") => head,
        ("", _) => message,
        _ => format!("{head}: {message}"),
    }
}
