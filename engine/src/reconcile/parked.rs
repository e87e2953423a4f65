//! An object that is left as somebody else has made it, for a while: a [fight](tidewatch_deployer::fight) that the engine has stopped.

use jiff::Timestamp;
use tidewatch_api::object::ObjectRef;
use tidewatch_deployer::drift::Difference;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parked {
    object: ObjectRef,
    tug: Tug,
    whose: Whose,
    /// Until then.
    pub(crate) until: Timestamp,
}

/// What somebody else does to an object again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tug {
    /// Changes a field.
    Changes { path: String, by: Option<String> },
    /// Is another module, and wants something else of it: its Manifest.
    Wants(String),
    /// Deletes it.
    Deletes,
    /// Did one of these, and has not done it again since.
    Ended,
}

/// Who brings the object, and with it what can be done about its fight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// A module.
    Module,
    /// The engine itself.
    Engine,
}

impl From<Difference> for Tug {
    fn from(difference: Difference) -> Self {
        match difference {
            Difference::Field { path, by } => Self::Changes { path, by },
            Difference::NotApplied => Self::Changes { path: "all".into(), by: None },
        }
    }
}

impl Parked {
    /// An object of a module.
    pub(crate) fn of_module(object: &ObjectRef, tug: Tug, until: Timestamp) -> Self {
        Self { object: object.clone(), tug, whose: Whose::Module, until }
    }

    /// An object that the engine brings to a runtime whatever its modules.
    pub(crate) fn of_engine(object: &ObjectRef, tug: Tug, until: Timestamp) -> Self {
        Self { object: object.clone(), tug, whose: Whose::Engine, until }
    }

    /// Which it is.
    pub(crate) const fn object(&self) -> &ObjectRef {
        &self.object
    }

    /// Whether it is as it is to be, and it has to be seen whether it stays so.
    pub(crate) fn is_trial(&self) -> bool {
        self.tug == Tug::Ended
    }

    /// Who does what, and what ends it.
    pub(crate) fn message(&self) -> String {
        let Self { object, tug, whose, until } = self;
        let or = |what: &'static str| if *whose == Whose::Module { what } else { "" };
        match tug {
            Tug::Changes { path, by } => {
                let by =
                    by.as_deref().map_or("somebody".to_owned(), |by| format!("the field manager '{by}'"));
                let ignore = or(", or have the module's template ignore the field (ignoreFields)");
                format!(
                    "{path} of {object} is changed back again and again by {by}; it is left as it is until {until:.0}; end the \
                     other writer{ignore}"
                )
            }
            Tug::Wants(other) => format!(
                "the Manifest {other} has {object}, too, with another content, and each changes it back; it is left as it is until \
                 {until:.0}; disable one of the two modules, or have one of them leave the object to the other"
            ),
            Tug::Ended => format!(
                "{object} was changed or deleted again and again by somebody; it is as it is to be now, and that is taken to last if it \
                 does until {until:.0}"
            ),
            Tug::Deletes => {
                let disable = or(", or disable the module");
                format!(
                    "{object} is deleted again and again by somebody; it is not made anew until {until:.0}; find in the audit log of \
                     the runtime who deletes it, and end that{disable}"
                )
            }
        }
    }
}
