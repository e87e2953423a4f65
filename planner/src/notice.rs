//! Events for users: effects of their changes, and actions they must take.

/// Object of a notice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum About {
    /// Kyma in KCP.
    Kyma,
    /// Manifest in KCP, by name.
    Manifest(String),
    /// Kyma in the runtime, visible to its user.
    RuntimeKyma,
}

/// Event type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Information.
    Normal,
    /// Action required.
    Warning,
}

impl Kind {
    /// Event type.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// A notice, sent at most hourly per occasion.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Notice {
    /// Object.
    pub about: About,
    /// Event type.
    pub kind: Kind,
    /// CamelCase word for programs.
    pub reason: &'static str,
    /// Event and remedy, without secrets; for [`About::RuntimeKyma`] nothing about other runtimes.
    pub message: String,
    /// Distinguishes repeated notices, such as by uid; empty if repetition is meaningless. Not sent.
    pub occasion: String,
}

impl Notice {
    /// Information.
    #[must_use]
    pub const fn normal(about: About, reason: &'static str, message: String) -> Self {
        Self { about, kind: Kind::Normal, reason, message, occasion: String::new() }
    }

    /// Action required.
    #[must_use]
    pub const fn warning(about: About, reason: &'static str, message: String) -> Self {
        Self { about, kind: Kind::Warning, reason, message, occasion: String::new() }
    }

    /// Sets the occasion; another one is sent again.
    #[must_use]
    pub fn of_occasion(self, occasion: String) -> Self {
        Self { occasion, ..self }
    }
}
