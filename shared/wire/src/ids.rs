use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// One run of an agent process. Sequence numbers are only comparable within one epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(Uuid);

/// One term of a receiver's ownership of its delivery state. Another session than before means that
/// the receiver has forgotten what it was told, so the agent sends its whole set again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(Uuid);

macro_rules! random_id {
    ($name:ident) => {
        impl $name {
            /// An id from 128 given bits; the caller supplies the randomness.
            #[must_use]
            pub const fn from_bits(bits: u128) -> Self {
                Self(Uuid::from_u128(bits))
            }

            /// An id from its text.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                Uuid::try_parse(text).ok().map(Self)
            }

            /// Whether this is no id: nothing was said.
            pub fn is_nil(&self) -> bool {
                self.0.is_nil()
            }

            /// A fresh id from the operating system's randomness.
            #[must_use]
            pub fn random() -> Self {
                Self(Uuid::new_v4())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}
random_id!(Epoch);
random_id!(SessionId);

/// The number of a change within an [`Epoch`], counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seq(pub u64);

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where an event must be handled before it may be let go: our engine, or a central component's manager. Cheap to clone:
/// every event that is in work carries one, and nearly always the engine, for which nothing is even counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct Route(Way);

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Way {
    Engine,
    Manager(Arc<str>),
}

const ENGINE: &str = "engine";

impl Route {
    /// The embedded lifecycle engine.
    #[must_use]
    pub const fn engine() -> Self {
        Self(Way::Engine)
    }

    /// A central component, by the name of its manager.
    #[must_use]
    pub fn manager(name: impl Into<String>) -> Self {
        name.into().into()
    }

    /// The name on the wire.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Way::Engine => ENGINE,
            Way::Manager(name) => name,
        }
    }
}

impl From<String> for Route {
    fn from(name: String) -> Self {
        Self(if name == ENGINE { Way::Engine } else { Way::Manager(name.into()) })
    }
}

impl From<Route> for String {
    fn from(route: Route) -> Self {
        route.as_str().to_owned()
    }
}
