//! Objects that the engine has stopped reverting for a while, because of a [conflict](tidewatch_deployer::conflict).

use jiff::Timestamp;
use tidewatch_api::object::ObjectRef;
use tidewatch_deployer::drift::Difference;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Suspended {
    object: ObjectRef,
    change: OtherChange,
    source: Source,
    pub(crate) until: Timestamp,
}

/// The repeated change that the engine has stopped reverting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OtherChange {
    Changes {
        path: String,
        by: Option<String>,
    },
    /// Another module applies the object with other content. Names its Manifest.
    Wants(String),
    Deletes,
    /// The change has not come again since the last revert.
    Ended,
}

/// The owner of the object, which decides what a user can do about the conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Module,
    Engine,
}

impl From<Difference> for OtherChange {
    fn from(difference: Difference) -> Self {
        match difference {
            Difference::Field { path, by } => Self::Changes { path, by },
            Difference::NotApplied => Self::Changes { path: "all".into(), by: None },
        }
    }
}

impl Suspended {
    pub(crate) fn of_module(object: &ObjectRef, change: OtherChange, until: Timestamp) -> Self {
        Self { object: object.clone(), change, source: Source::Module, until }
    }

    pub(crate) fn of_engine(object: &ObjectRef, change: OtherChange, until: Timestamp) -> Self {
        Self { object: object.clone(), change, source: Source::Engine, until }
    }

    pub(crate) const fn object(&self) -> &ObjectRef {
        &self.object
    }

    /// Whether the object was reverted and is on trial.
    pub(crate) fn is_trial(&self) -> bool {
        self.change == OtherChange::Ended
    }

    pub(crate) fn message(&self) -> String {
        let Self { object, change, source, until } = self;
        let or = |what: &'static str| if *source == Source::Module { what } else { "" };
        match change {
            OtherChange::Changes { path, by } => {
                let by = by
                    .as_deref()
                    .map_or("another client".to_owned(), |by| format!("the field manager '{by}'"));
                let ignore = or(", or have the module's template ignore the field (ignoreFields)");
                format!(
                    "{path} of {object} is changed back again and again by {by}; it is left as it is until {until:.0}; end the \
                     other writer{ignore}"
                )
            }
            OtherChange::Wants(other) => format!(
                "the Manifest {other} has {object}, too, with another content, and each changes it back; it is left as it is until \
                 {until:.0}; disable one of the two modules, or have one of them leave the object to the other"
            ),
            OtherChange::Ended => format!(
                "{object} was changed or deleted again and again by another client; it is as its module has it now, and the conflict counts as over if it stays so \
                 until {until:.0}"
            ),
            OtherChange::Deletes => {
                let disable = or(", or disable the module");
                format!(
                    "{object} is deleted again and again by another client; it is not created again until {until:.0}; find the client in the audit log \
                     of the runtime, and stop it{disable}"
                )
            }
        }
    }
}
