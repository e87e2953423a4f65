//! What a user is told in an Event: something that they did and that had an effect, or that they must do.

/// What a notice is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum About {
    /// The Kyma in KCP.
    Kyma,
    /// A Manifest in KCP, by name.
    Manifest(String),
    /// The Kyma in the runtime, which its user sees.
    RuntimeKyma,
}

/// How serious it is; the two types of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// For information.
    Normal,
    /// Somebody should do something.
    Warning,
}

impl Kind {
    /// The Event's type.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// A notice. Told once an hour at most for one occasion, however often it is made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Notice {
    /// What it is about.
    pub about: About,
    /// How serious it is.
    pub kind: Kind,
    /// One word in CamelCase, for programs.
    pub reason: &'static str,
    /// For people: what happened and what ends it. Never anything secret; for [`About::RuntimeKyma`] nothing of another runtime.
    pub message: String,
    /// What tells this time from another with the same words, such as the uid of what goes; empty where a repetition is none. Not told.
    pub occasion: String,
}

impl Notice {
    /// For information.
    #[must_use]
    pub const fn normal(about: About, reason: &'static str, message: String) -> Self {
        Self { about, kind: Kind::Normal, reason, message, occasion: String::new() }
    }

    /// Somebody should do something.
    #[must_use]
    pub const fn warning(about: About, reason: &'static str, message: String) -> Self {
        Self { about, kind: Kind::Warning, reason, message, occasion: String::new() }
    }

    /// The same of one occasion: at another one it is told again.
    #[must_use]
    pub fn of_occasion(self, occasion: String) -> Self {
        Self { occasion, ..self }
    }
}
