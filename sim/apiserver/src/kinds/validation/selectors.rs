//! Label selectors.

use serde_json::Value;

use super::{metadata, names, values::is_empty};
use crate::{
    json::{list, text},
    schema::cause::Cause,
};

pub(super) fn check(selector: &Value, path: &str, causes: &mut Vec<Cause>) {
    metadata::labels(&selector["matchLabels"], &format!("{path}.matchLabels"), causes);
    for (index, expression) in list(&selector["matchExpressions"]).iter().enumerate() {
        let path = format!("{path}.matchExpressions[{index}]");
        requirement(expression, &path, causes);
        metadata::check_format(text(expression, "key"), names::qualified, &format!("{path}.key"), causes);
        for (index, value) in list(&expression["values"]).iter().enumerate() {
            let value = value.as_str().unwrap_or_default();
            metadata::check_format(value, names::label_value, &format!("{path}.values[{index}]"), causes);
        }
    }
}

pub(super) fn requirement(expression: &Value, path: &str, causes: &mut Vec<Cause>) {
    let values = format!("{path}.values");
    let bare = is_empty(&expression["values"]);
    match text(expression, "operator") {
        "In" | "NotIn" if bare => {
            causes.push(Cause::required(&values, "must be specified when `operator` is 'In' or 'NotIn'"));
        }
        "Exists" | "DoesNotExist" if !bare => {
            let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            causes.push(Cause::forbidden(&values, why));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        other => {
            causes.push(Cause::invalid(
                &format!("{path}.operator"),
                &other.into(),
                "not a valid selector operator",
            ));
        }
    }
}

/// Requires a valid selector.
pub(crate) fn matches(selector: &Value, labels: &Value) -> bool {
    let wanted = selector["matchLabels"].as_object();
    let expression = |expression: &Value| {
        let value = labels.get(text(expression, "key"));
        let within = value.is_some_and(|value| list(&expression["values"]).contains(value));
        match text(expression, "operator") {
            "In" => within,
            "NotIn" => !within,
            "Exists" => value.is_some(),
            _ => value.is_none(),
        }
    };
    wanted.into_iter().flatten().all(|(name, value)| labels.get(name) == Some(value))
        && list(&selector["matchExpressions"]).iter().all(expression)
}
