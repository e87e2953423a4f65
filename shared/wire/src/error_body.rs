use serde::{Deserialize, Serialize};

/// JSON body of every error answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ErrorBody {
    /// Stable word for programs, for example `unknown-runtime`.
    pub error: String,
    /// Cause and remedy, for people.
    pub message: String,
}

/// [`ErrorBody::error`] for a certificate that is older than the registration of its runtime. The agent requests another one.
pub const ISSUED_BEFORE_REGISTRATION: &str = "issued-before-registration";
