use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// One run of an agent process. Sequence numbers compare only within an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(Uuid);

/// One term of a receiver's delivery state. After a change of session, the agent resends its whole set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(Uuid);

macro_rules! random_id {
    ($name:ident) => {
        impl $name {
            /// Makes an id from 128 random bits of the caller.
            #[must_use]
            pub const fn from_bits(bits: u128) -> Self {
                Self(Uuid::from_u128(bits))
            }

            /// Parses an id.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                Uuid::try_parse(text).ok().map(Self)
            }

            /// Whether the id is absent.
            pub fn is_nil(&self) -> bool {
                self.0.is_nil()
            }

            /// Makes an id from the operating system's randomness.
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

/// Number of a change within an [`Epoch`], from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seq(pub u64);

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Component that must handle an event: the engine or a central component's manager. Cheap to clone, since every held
/// event has one.
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

    /// A central component, by manager name.
    #[must_use]
    pub fn manager(name: impl Into<String>) -> Self {
        name.into().into()
    }

    /// Name on the wire.
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
