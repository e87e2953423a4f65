//! Errors as text.

/// Starts of messages that libraries put before a cause. They help no reader.
const STEPS: [&str; 5] =
    ["client error (", "error sending request", "ServiceError: ", "HyperError: ", "tcp connect error"];

fn is_step(error: &dyn std::error::Error) -> bool {
    let text = error.to_string();
    error.source().is_some() && STEPS.iter().any(|step| text.starts_with(step))
}

/// An error with its sources, in one line, without the steps of libraries between them.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let next = error.to_string();
        if !is_step(error) && !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        source = error.source();
    }
    text
}
