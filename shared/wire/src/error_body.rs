use serde::{Deserialize, Serialize};

/// The JSON body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ErrorBody {
    /// A stable word for programs, for example `unknown-runtime`.
    pub error: String,
    /// What is wrong and what to do about it, for people.
    pub message: String,
}
