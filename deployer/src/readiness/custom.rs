//! Custom resources: `status.state`, or else conditions.

use serde_json::Value;
use tidewatch_api::{State, readiness::CrState};

use super::{
    Judgement, text,
    view::{Condition, NOT_OBSERVED, ObjectView},
};

/// Conditions for the whole object. The first existing one counts.
const READY: [&str; 5] = ["Ready", "Available", "Healthy", "Programmed", "Succeeded"];
/// Conditions that need intervention.
const FAILED: [&str; 2] = ["Stalled", "Failed"];

/// Returns the state of a module's custom resource. `None`: it does not exist.
///
/// Processing while its status is for an older generation. No deadline applies, because operators may need any time.
#[must_use]
pub fn module_cr(cr: Option<&Value>) -> CrState {
    let cr_state = |state, message: String| CrState { state, message };
    let Some(cr) = cr.map(ObjectView) else { return cr_state(State::Empty, String::new()) };
    if cr.is_deleting() {
        return cr_state(State::Deleting, cause(cr).unwrap_or_default());
    }
    if cr.is_outdated() {
        return cr_state(State::Processing, NOT_OBSERVED.to_owned());
    }
    match reported_state(cr) {
        Some(State::Ready) => cr_state(State::Ready, String::new()),
        Some(state) => cr_state(state, cause(cr).unwrap_or_default()),
        None => match by_conditions(cr) {
            Judgement::Ready => cr_state(State::Ready, String::new()),
            Judgement::Processing(text) | Judgement::Blocked(text) => cr_state(State::Processing, text),
            Judgement::Warning(text) => cr_state(State::Warning, text),
            Judgement::Error(text) => cr_state(State::Error, text),
            Judgement::Unknown => cr_state(State::Empty, String::new()),
        },
    }
}

/// Warning counts as ready: the object serves. Unknown: neither state nor conditions.
pub(super) fn judge(object: ObjectView<'_>) -> Judgement {
    let state_text = |state: State| match cause(object) {
        Some(why) => format!("its state is {state}: {why}"),
        None => format!("its state is {state}"),
    };
    match reported_state(object) {
        Some(State::Ready | State::Warning) => Judgement::Ready,
        Some(state @ State::Error) => Judgement::Error(state_text(state)),
        Some(state) => Judgement::Processing(state_text(state)),
        None => by_conditions(object),
    }
}

fn reported_state(object: ObjectView<'_>) -> Option<State> {
    let state = State::parse(object.status()["state"].as_str()?)?;
    matches!(state, State::Ready | State::Warning | State::Processing | State::Error | State::Deleting)
        .then_some(state)
}

fn by_conditions(object: ObjectView<'_>) -> Judgement {
    if let Some((type_, failed)) =
        FAILED.into_iter().find_map(|t| object.condition(t).filter(Condition::holds).map(|c| (t, c)))
    {
        return Judgement::Error(cause_text(
            &format!("its condition {type_} holds"),
            failed.reason,
            failed.message,
        ));
    }
    let Some((type_, ready)) = READY.into_iter().find_map(|t| object.condition(t).map(|c| (t, c))) else {
        return Judgement::Unknown;
    };
    if ready.holds() {
        Judgement::Ready
    } else if ready.stale {
        Judgement::Processing(NOT_OBSERVED.to_owned())
    } else {
        Judgement::Processing(cause_text(
            &format!("its condition {type_} does not hold"),
            ready.reason,
            ready.message,
        ))
    }
}

/// The failing condition, or else the state's description.
fn cause(object: ObjectView<'_>) -> Option<String> {
    let failing = READY.into_iter().find_map(|t| object.condition(t).filter(Condition::fails));
    let text = match failing {
        Some(condition) => cause_text("", condition.reason, condition.message),
        None => {
            let described = ["description", "message"].into_iter().find_map(|f| object.status()[f].as_str());
            text::masked(described.unwrap_or_default())
        }
    };
    (!text.is_empty()).then_some(text)
}

fn cause_text(subject: &str, reason: &str, message: &str) -> String {
    let (reason, message) = (text::name(reason), text::masked(message));
    let head = match (subject, reason.as_str()) {
        (subject, "") => subject.to_owned(),
        ("", reason) => reason.to_owned(),
        (subject, reason) => format!("{subject} ({reason})"),
    };
    match (head.as_str(), message.as_str()) {
        (_, "") => head,
        ("", _) => message,
        _ => format!("{head}: {message}"),
    }
}
