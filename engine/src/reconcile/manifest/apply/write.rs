//! Writes one object. Removes leftover fields, takes over fields of helm and kubectl, and notes the applied content.

use serde_json::{Value, json};
use tidewatch_api::{names::field_managers::APPLIER, object::ObjectRef};
use tidewatch_deployer::{
    adoption,
    drift::{self, Ignored, Leftover},
};

use super::Installer;
use crate::{
    clusters::objects::{self, ObjectError},
    error::Error,
};

/// An object that the API server refused.
pub(super) struct Refused {
    pub(super) error: ObjectError,
    /// The live object, if read.
    pub(super) live: Option<Value>,
    /// Fields that may be the reason.
    pub(super) leftovers: Vec<Leftover>,
}

impl From<ObjectError> for Refused {
    fn from(error: ObjectError) -> Self {
        Self { error, live: None, leftovers: Vec::new() }
    }
}

impl Refused {
    /// Returns the message, with the field manager that keeps the refused field.
    pub(super) fn message(&self) -> String {
        let kept = self.leftovers.iter().find_map(|left| Some((&left.path, left.by.as_ref()?)));
        let kept = kept.map_or_else(String::new, |(path, by)| {
            format!("; {path} is the field manager's '{by}', and is not wanted any more")
        });
        format!("{}{kept}", self.error.message())
    }
}

impl Installer<'_> {
    /// Applies an object. Retries without unowned fields if it is refused, or after taking fields over from installers.
    pub(super) async fn write(
        &self,
        id: &ObjectRef,
        wanted: &Value,
        ignored: &Ignored<'_>,
        live: Option<&Value>,
    ) -> Result<Value, Refused> {
        let applied = match self.apply(wanted, ignored, live).await {
            Err(error) if error.is_refused() => {
                self.without_leftovers(id, wanted, ignored, live, error).await?
            }
            applied => applied?,
        };
        let applied = match self.adopt(id, &applied).await? {
            Some(taken) if drift::difference(&taken, wanted, APPLIER, ignored).is_some() => {
                self.apply(wanted, ignored, Some(&taken)).await?
            }
            Some(taken) => taken,
            None => applied,
        };
        Ok(self.note(wanted, ignored, applied).await)
    }

    async fn apply(
        &self,
        wanted: &Value,
        ignored: &Ignored<'_>,
        live: Option<&Value>,
    ) -> Result<Value, ObjectError> {
        let Some(live) = live.filter(|_| !ignored.is_empty()) else {
            return objects::apply(self.runtime, wanted, APPLIER).await;
        };
        // A user's change since the read must not be lost.
        let mut wanted = wanted.clone();
        wanted["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
        objects::apply(self.runtime, &wanted, APPLIER).await
    }

    /// Applies a refused object again without the unowned fields that may be the reason.
    async fn without_leftovers(
        &self,
        id: &ObjectRef,
        wanted: &Value,
        ignored: &Ignored<'_>,
        live: Option<&Value>,
        error: ObjectError,
    ) -> Result<Value, Refused> {
        let causes = error.causes();
        if causes.is_empty() || error.is_of_immutable_field() {
            return Err(error.into());
        }
        let read = if live.is_none() { objects::get(self.runtime, id).await? } else { None };
        let Some(live) = live.or(read.as_ref()) else { return Err(error.into()) };
        let is_engine_owned =
            |entry: &Value| entry["manager"] == APPLIER || adoption::is_installer_entry(entry);
        let leftovers = drift::leftovers(live, wanted, &causes, is_engine_owned);
        let (kept, unowned): (Vec<_>, Vec<_>) = leftovers.into_iter().partition(|left| left.by.is_some());
        let refused = |error, leftovers| Refused { error, live: Some(live.clone()), leftovers };
        if unowned.is_empty() || self.is_dry()? {
            return Err(refused(error, [kept, unowned].concat()));
        }
        let entries = adoption::adopt(live, &wanted["apiVersion"], APPLIER, &unowned);
        let Some(adopted) = self.own(id, live, &entries).await? else { return Err(refused(error, kept)) };
        tracing::info!(kyma = self.kyma, object = %id, field = unowned.first().map(|left| left.path.as_str()), "removed: nobody owns it, and it keeps the object from being changed");
        let applied = self.apply(wanted, ignored, Some(&adopted)).await;
        applied.map_err(|error| refused(error, [kept, unowned].concat()))
    }

    /// Takes over fields that installers own; `None`: there are none.
    pub(super) async fn adopt(&self, id: &ObjectRef, live: &Value) -> Result<Option<Value>, ObjectError> {
        let Some(entries) = adoption::take_over_installed(live, APPLIER) else { return Ok(None) };
        if self.is_dry()? {
            return Ok(None);
        }
        let taken = self.own(id, live, &entries).await?;
        if taken.is_some() {
            tracing::info!(kyma = self.kyma, object = %id, "what an installer owned of it is the module's now");
        }
        Ok(taken)
    }

    /// Writes the field managers of an object.
    async fn own(&self, id: &ObjectRef, live: &Value, entries: &Value) -> Result<Option<Value>, ObjectError> {
        let version = &live["metadata"]["resourceVersion"];
        let fields = json!({"metadata": {"managedFields": entries, "resourceVersion": version}});
        objects::merge(self.runtime, id, &fields).await
    }

    /// Records the applied content in the object if needed. On failure, a later pass applies it again.
    async fn note(&self, wanted: &Value, ignored: &Ignored<'_>, made: Value) -> Value {
        let Some(noted) = drift::with_note(&made, wanted, APPLIER, ignored) else { return made };
        if self.is_dry().unwrap_or(true) {
            return made;
        }
        self.apply(&noted, ignored, Some(&made)).await.unwrap_or(made)
    }

    /// Whether this is a dry run: then one write does not see another.
    fn is_dry(&self) -> Result<bool, ObjectError> {
        Ok(self.runtime.permit()?.is_dry())
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        refused.error.into()
    }
}
