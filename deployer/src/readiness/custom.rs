//! Custom resources: `status.state`, or else conditions.

use serde_json::Value;
use tidewatch_api::{State, readiness::CrState};

use super::{
    Says,
    seen::{Condition, Seen, UNSEEN},
    text,
};

/// Conditions for the whole object. The first existing one counts.
const READY: [&str; 5] = ["Ready", "Available", "Healthy", "Programmed", "Succeeded"];
/// Conditions that need intervention.
const STUCK: [&str; 2] = ["Stalled", "Failed"];

/// Returns the state of a module's custom resource. `None`: it does not exist.
///
/// Processing while its status is for an older generation. No deadline applies, because operators may need any time.
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

/// Warning counts as ready: the object serves. Unknown: neither state nor conditions.
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

/// The failing condition, or else the state's description.
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
