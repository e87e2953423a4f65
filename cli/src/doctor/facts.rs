//! The facts that `doctor` judges. No secret value is in them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;
use tidewatch_certs::Validity;

use crate::rights::Right;

/// The answer to a question.
pub(super) type Asked<T> = Result<T, NoAnswer>;

/// A question without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NoAnswer {
    /// Whether the user of this command lacks a right.
    pub(super) forbidden: bool,
    /// Cause and next step.
    pub(super) message: String,
}

pub(super) struct Facts {
    pub(super) now: Timestamp,
    pub(super) namespace: String,
    /// Version of KCP's API server.
    pub(super) version: Asked<String>,
    /// Absent if KCP does not answer.
    pub(super) kcp: Option<Kcp>,
}

pub(super) struct Kcp {
    /// Installed definitions of our kinds by name.
    pub(super) definitions: Vec<(String, Asked<Option<Value>>)>,
    /// User of the receiver. Absent if no Deployment names one.
    pub(super) user: Option<String>,
    /// Rights that the receiver lacks.
    pub(super) missing_rights: Asked<Vec<Right>>,
    /// Rights that it lacks to keep its own certificates.
    pub(super) missing_certificate_rights: Asked<Vec<Right>>,
    pub(super) lease: Asked<Option<Leader>>,
    pub(super) paused: Asked<bool>,
    /// Secrets of CA and receiver.
    pub(super) certificates: Vec<(&'static str, Certificate)>,
    /// Step of the CA's rotation that is under way, and its start.
    pub(super) rotation: Option<(String, String)>,
    /// Revoked runtime ids, with the times of their revocations.
    pub(super) revoked: Asked<BTreeMap<String, String>>,
    pub(super) registry: Registry,
    pub(super) runtimes: Asked<Runtimes>,
}

/// Validity of a Secret's certificate, if there is the Secret, or the reason why it is unreadable.
pub(super) type Certificate = Asked<Option<Result<Validity, String>>>;

/// Holder of the Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Leader {
    pub(super) holder: String,
    pub(super) renewed: Option<Timestamp>,
    pub(super) seconds: i64,
}

pub(super) enum Registry {
    /// No Deployment names one.
    Unknown,
    /// The Deployment that names one cannot be read.
    Unreadable(NoAnswer),
    /// It has answered this code.
    Answered {
        address: String,
        code: u16,
    },
    Silent {
        address: String,
        cause: String,
    },
}

pub(super) struct Runtimes {
    pub(super) checked: Vec<Runtime>,
    pub(super) more: usize,
    /// The runtime that `--runtime` names, if there is none.
    pub(super) unknown: Option<String>,
}

pub(super) struct Runtime {
    pub(super) kyma: String,
    pub(super) id: Option<String>,
    pub(super) has_domain: bool,
    pub(super) is_skipped: bool,
    pub(super) has_status: bool,
    pub(super) revoked_since: Option<String>,
    /// Condition `RuntimeEvents`.
    pub(super) events: Option<Events>,
    pub(super) access: Access,
}

pub(super) struct Events {
    pub(super) proven: bool,
    pub(super) reason: String,
    pub(super) message: String,
}

/// The engine's access to a runtime.
pub(super) enum Access {
    Works {
        /// Rights that modules may need, and the kubeconfig lacks.
        missing: Vec<Right>,
        /// End of the agent's certificate, if it is readable.
        certificate_ends: Option<Timestamp>,
    },
    NoSecret,
    Several(Vec<String>),
    /// The Secret cannot be read, or the engine would refuse its kubeconfig.
    Refused {
        secret: String,
        cause: String,
    },
    /// 401.
    Unauthorized {
        secret: String,
    },
    Silent {
        cause: String,
    },
}
