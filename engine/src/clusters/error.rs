//! Errors of calls to a runtime.

use std::{error::Error, fmt, time::Duration};

use kube::core::Status;
use tidewatch_planner::status::{TIMED_OUT, UNREACHABLE};

/// Class of a failure; decides the engine's next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The connection failed, or the API server is unavailable. Retried with backoff.
    Unreachable,
    /// 401: the kubeconfig's credentials are invalid.
    Unauthorized,
    /// 403.
    Forbidden,
    /// 404: the object or its kind is missing; [`super::Mapper::missing`] finds out which.
    NotFound,
    /// 409: another writer was faster, or the object exists already.
    Conflict,
    /// 403, because the object's namespace is being deleted.
    NamespaceTerminating,
    /// 400, 405, 413, 415 or 422: the API server rejects the object. The cause may be an admission policy, a webhook or a quota, and no
    /// event reports their changes.
    Invalid,
    /// 429: the API server asks to wait.
    Throttled {
        /// How long, at most one hour; `None` if not given.
        retry_after: Option<Duration>,
    },
    /// The call's deadline passed, or the API server's own (504).
    Timeout,
    /// The answer was larger than the cap.
    TooLarge,
    /// Anything else.
    Other,
}

impl ErrorClass {
    /// A stable label for metrics.
    pub const fn metric_label(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::NamespaceTerminating => "namespace_terminating",
            Self::Invalid => "invalid",
            Self::Throttled { .. } => "throttled",
            Self::Timeout => "timeout",
            Self::TooLarge => "too_large",
            Self::Other => "other",
        }
    }

    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Unreachable => UNREACHABLE,
            Self::Unauthorized => "the cluster does not accept the credentials; renew the kubeconfig Secret",
            Self::Forbidden => "the cluster forbids it; check the permissions of the kubeconfig's user",
            Self::NotFound => "not found",
            Self::Conflict => "it conflicts with another writer",
            Self::NamespaceTerminating => "its namespace is being deleted; wait until it is gone",
            Self::Invalid => "the API server refuses the object; correct it",
            Self::Throttled { .. } => "the API server limits our request rate; it is tried again later",
            Self::Timeout => TIMED_OUT,
            Self::TooLarge => "the answer is larger than the limit",
            Self::Other => "it failed",
        }
    }
}

/// A failed call. Display names the call and the class; [`Self::message`] has the API server's words.
#[derive(Debug)]
pub struct RuntimeError {
    /// Class of the failure.
    pub class: ErrorClass,
    /// The call, as messages name it.
    pub call: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl fmt::Display for RuntimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.text())
    }
}

impl Error for RuntimeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// Phrases in API server messages, and their explanation for a status.
const EXPLANATIONS: [(&str, &str); 5] = [
    ("failed calling webhook", "a webhook in the cluster does not answer; repair or remove the webhook"),
    ("conversion webhook for ", "the webhook that converts objects of its kind fails; repair the webhook"),
    (
        "denied the request",
        "a webhook in the cluster refuses it; correct the object, or change the webhook's policy",
    ),
    (
        "failed to create typed patch object",
        "the object does not fit the schema of its kind; correct the field that is named",
    ),
    ("exceeded quota", "a quota in the cluster is used up; raise it, or delete objects that it counts"),
];

/// Longest API server message that is passed on, in characters.
const MAX_MESSAGE: usize = 500;
/// Replaces the middle of a longer message.
const GAP: &str = " … ";
const MAX_RETRY_AFTER: Duration = Duration::from_hours(1);

impl RuntimeError {
    pub(super) fn new(
        class: ErrorClass,
        call: impl Into<String>,
        source: Option<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self { class, call: call.into(), source }
    }

    pub(crate) fn from_kube(call: impl Into<String>, error: kube::Error) -> Self {
        let class = classify(&error);
        // The parser's messages quote the text, which may be a Secret's.
        let source = match error {
            kube::Error::SerdeError(e) => format!("the answer is no valid object (line {})", e.line()).into(),
            kube::Error::FromUtf8(_) => "the answer is no UTF-8 text".into(),
            error => error.into(),
        };
        Self::new(class, call, Some(source))
    }

    fn text(&self) -> &'static str {
        let message = self.status().map_or("", |status| &*status.message);
        match EXPLANATIONS.iter().find(|(phrase, _)| message.contains(phrase)) {
            Some((_, text)) => text,
            None if matches!(self.class, ErrorClass::NotFound) && message.starts_with("namespaces \"") => {
                "its namespace does not exist; create it, or add it to the module"
            }
            None => self.class.text(),
        }
    }

    /// See [`ErrorClass::metric_label`].
    pub const fn metric_label(&self) -> &'static str {
        self.class.metric_label()
    }

    /// Whether the same call may succeed later with the object unchanged.
    pub const fn is_retryable(&self) -> bool {
        !matches!(self.class, ErrorClass::NotFound | ErrorClass::TooLarge)
    }

    /// Whether to rebuild the client from the Secret: its address or credentials may have changed.
    pub const fn discredits_client(&self) -> bool {
        matches!(self.class, ErrorClass::Unauthorized | ErrorClass::Unreachable)
    }

    /// Whether an API server has answered, if only with an error.
    pub fn is_answered(&self) -> bool {
        self.status().is_some() || !matches!(self.class, ErrorClass::Unreachable | ErrorClass::Timeout)
    }

    /// The wait that the API server asked for.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.class {
            ErrorClass::Throttled { retry_after } => retry_after,
            _ => None,
        }
    }

    /// The API server's own message, at most 500 characters. A longer one keeps its beginning (the problem) and its end (the reason); the
    /// middle may quote a whole value.
    pub fn message(&self) -> Option<String> {
        let status = self.status().filter(|status| !status.message.is_empty())?;
        let message = &status.message;
        let count = message.chars().count();
        if count <= MAX_MESSAGE {
            return Some(message.clone());
        }
        let end = MAX_MESSAGE / 3;
        let begin = MAX_MESSAGE - end - GAP.chars().count();
        let parts = message.chars().take(begin).chain(GAP.chars()).chain(message.chars().skip(count - end));
        Some(parts.collect())
    }

    /// The API server's answer, if any.
    pub fn status(&self) -> Option<&Status> {
        match self.source.as_deref()?.downcast_ref::<kube::Error>()? {
            kube::Error::Api(status) => Some(status),
            _ => None,
        }
    }
}

/// Error for 429, set by the client's response layer, which still has the headers.
#[derive(Debug, thiserror::Error)]
#[error("the API server answered 429")]
pub(crate) struct TooManyRequests {
    pub(crate) retry_after: Option<Duration>,
}

fn classify(error: &kube::Error) -> ErrorClass {
    match error {
        kube::Error::Api(status) => of_status(status),
        kube::Error::BuildRequest(_) | kube::Error::HttpError(_) => ErrorClass::Invalid,
        kube::Error::Auth(_) => ErrorClass::Unauthorized,
        kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_) => of_chain(error),
        _ => ErrorClass::Other,
    }
}

fn of_status(status: &Status) -> ErrorClass {
    let details = status.details.as_ref();
    let terminating = details
        .is_some_and(|details| details.causes.iter().any(|cause| cause.reason == "NamespaceTerminating"));
    match status.code {
        401 => ErrorClass::Unauthorized,
        _ if terminating => ErrorClass::NamespaceTerminating,
        403 => ErrorClass::Forbidden,
        404 => ErrorClass::NotFound,
        409 => ErrorClass::Conflict,
        400 | 405 | 413 | 415 | 422 => ErrorClass::Invalid,
        429 => {
            let seconds = details.map(|details| details.retry_after_seconds).filter(|seconds| *seconds > 0);
            let retry_after = seconds.map(|s| Duration::from_secs(u64::from(s)).min(MAX_RETRY_AFTER));
            ErrorClass::Throttled { retry_after }
        }
        504 => ErrorClass::Timeout,
        502 | 503 => ErrorClass::Unreachable,
        _ => ErrorClass::Other,
    }
}

fn of_chain(error: &(dyn Error + 'static)) -> ErrorClass {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<http_body_util::LengthLimitError>() {
            return ErrorClass::TooLarge;
        }
        if let Some(throttled) = error.downcast_ref::<TooManyRequests>() {
            return ErrorClass::Throttled { retry_after: throttled.retry_after };
        }
        next = error.source();
    }
    ErrorClass::Unreachable
}

#[cfg(test)]
mod tests {
    use kube::core::response::{StatusCause, StatusDetails};

    use super::*;

    fn api(code: u16, details: Option<StatusDetails>) -> RuntimeError {
        let mut status = Status::failure("words of the server", "Reason").with_code(code);
        status.details = details;
        RuntimeError::from_kube("apply Deployment a/b", kube::Error::Api(status.boxed()))
    }

    fn details(json: &serde_json::Value) -> Option<StatusDetails> {
        serde_json::from_value(json.clone()).unwrap()
    }

    #[test]
    fn api_answers_are_classified() {
        for (code, label) in [
            (400, "invalid"),
            (401, "unauthorized"),
            (403, "forbidden"),
            (404, "not_found"),
            (409, "conflict"),
            (422, "invalid"),
            (429, "throttled"),
            (500, "other"),
            (503, "unreachable"),
            (504, "timeout"),
        ] {
            assert_eq!(api(code, None).metric_label(), label, "{code}");
        }
        let cause: StatusCause =
            serde_json::from_value(serde_json::json!({"reason": "NamespaceTerminating"})).unwrap();
        let terminating = api(403, details(&serde_json::json!({"causes": [cause]})));
        assert_eq!(terminating.class, ErrorClass::NamespaceTerminating);
        let throttled = api(429, details(&serde_json::json!({"retryAfterSeconds": 7})));
        assert_eq!(throttled.retry_after(), Some(Duration::from_secs(7)));
    }

    #[test]
    fn names_the_cause_of_responses_without_a_status_reason() {
        for (code, message, explanation) in [
            (500, "Internal error occurred: failed calling webhook \"v.x\": refused", "does not answer"),
            (
                500,
                "conversion webhook for x.dev/v1, Kind=Buoy failed: Post \"https://x.n.svc\": refused",
                "the webhook that converts objects",
            ),
            (403, "admission webhook \"v.x\" denied the request: no", "a webhook in the cluster refuses it"),
            (403, "pods \"a\" is forbidden: exceeded quota: small", "a quota in the cluster is used up"),
            (404, "namespaces \"a\" not found", "its namespace does not exist"),
            (404, "configmaps \"a\" not found", "not found"),
            (403, "no", "check the permissions"),
        ] {
            let status = Status::failure(message, "Reason").with_code(code);
            let error = RuntimeError::from_kube("applying it", kube::Error::Api(status.boxed())).to_string();
            assert!(error.starts_with("applying it: ") && error.contains(explanation), "{error}");
        }
    }

    #[test]
    fn server_messages_stay_out_of_the_error_text() {
        let error = api(403, None);
        assert_eq!(
            error.to_string(),
            "apply Deployment a/b: the cluster forbids it; check the permissions of the kubeconfig's user"
        );
        assert_eq!(error.message().as_deref(), Some("words of the server"));
        assert!(error.source().is_some());
    }

    #[test]
    fn a_long_message_keeps_its_start_and_end() {
        let message = |text: String| {
            let status = Status { message: text, code: 422, ..Status::default() };
            RuntimeError::from_kube("apply", kube::Error::Api(Box::new(status))).message().unwrap()
        };
        assert_eq!(message("é".repeat(MAX_MESSAGE)), "é".repeat(MAX_MESSAGE));
        let shortened = message(format!("Job is invalid: {}: field is immutable", "é".repeat(4_000)));
        assert_eq!(shortened.chars().count(), MAX_MESSAGE);
        assert!(
            shortened.starts_with("Job is invalid: é") && shortened.ends_with("é: field is immutable"),
            "{shortened}"
        );
    }

    #[test]
    fn unparseable_answers_are_not_quoted() {
        let secret = serde_json::from_str::<u8>("\"top-secret\"").unwrap_err();
        assert!(secret.to_string().contains("top-secret"), "the parser does quote");
        let error = RuntimeError::from_kube("get", kube::Error::SerdeError(secret));
        assert!(!format!("{error} {error:?} {:?}", error.source()).contains("top-secret"));
    }
}
