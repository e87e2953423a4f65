//! Single objects in a runtime: server-side apply, read, create, delete.

mod error;
mod kinds;
#[cfg(test)]
mod tests;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Api,
    api::{
        DeleteParams, DynamicObject, GetParams, ListParams, Patch, PatchParams, Preconditions,
        PropagationPolicy,
    },
    core::{PartialObjectMeta, Request},
};
use serde_json::Value;
use tidewatch_api::{
    names::field_managers,
    object::{Gvk, ObjectRef},
};
use tidewatch_deployer::ownership::Marks;

use super::{client::RuntimeClient, error::ErrorClass, gated::Gated};
use crate::gate::{DryRunWrite, Permit};

pub(crate) use error::ObjectError;
pub(crate) use kinds::{api, crd_of, defined_kind, explain, forget, plural, scope, served, watchable};
use kinds::{api_of_existing, is_outdated, stored_kind};

fn requests(api: &Api<DynamicObject>) -> Request {
    Request::new(api.resource_url())
}

/// Sends a request and returns the raw answer. A typed object would only be converted back.
async fn send(
    api: &Api<DynamicObject>,
    request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
) -> Result<Value, kube::Error> {
    api.clone().into_client().request(request.map_err(kube::Error::BuildRequest)?).await
}

async fn patch_raw(
    api: &Api<DynamicObject>,
    name: &str,
    params: &PatchParams,
    patch: &Patch<&Value>,
) -> Result<Value, kube::Error> {
    send(api, requests(api).patch(name, params, patch)).await
}

fn identity(object: &Value) -> Result<ObjectRef, ObjectError> {
    ObjectRef::of(object).ok_or_else(|| ObjectError::Malformed("an object".into()))
}

pub(crate) async fn apply(runtime: &Gated, object: &Value, manager: &str) -> Result<Value, ObjectError> {
    let id = identity(object)?;
    let permit = runtime.permit()?;
    let api = api(runtime, &id.gvk, &id.namespace).await?;
    let params = PatchParams { dry_run: permit.is_dry(), ..PatchParams::apply(manager).force() };
    let before = stored(runtime, &permit, &id).await?;
    match runtime
        .write(&format!("applying {id}"), patch_raw(&api, &id.name, &params, &Patch::Apply(object)))
        .await?
    {
        Ok(applied) => {
            permit.record(|| dry_run_write(runtime, "apply", &id, before, applied.clone()));
            Ok(applied)
        }
        Err(error) => Err(explain(runtime, &id.gvk, error).await),
    }
}

/// Applies a subresource of an object, such as `status`.
pub(crate) async fn apply_subresource(
    runtime: &Gated,
    subresource: &'static str,
    object: &Value,
    manager: &str,
) -> Result<(), ObjectError> {
    let id = identity(object)?;
    let permit = runtime.permit()?;
    let api = api(runtime, &id.gvk, &id.namespace).await?;
    let params = PatchParams { dry_run: permit.is_dry(), ..PatchParams::apply(manager).force() };
    let patch = Patch::Apply(object);
    let before = stored(runtime, &permit, &id).await?;
    let applied = runtime
        .write(&format!("applying the {subresource} of {id}"), async {
            let request = requests(&api).patch_subresource(subresource, &id.name, &params, &patch);
            send(&api, request).await
        })
        .await??;
    permit.record(|| dry_run_write(runtime, subresource, &id, before, applied));
    Ok(())
}

/// Creates an object that a read has not found; `None` if the apply conflicts, since the object then exists.
///
/// An apply, not a POST: for two seconds after a CRD is established, API servers delay every POST of its kind by two seconds. The apply
/// does not force, so a faster writer keeps its values.
pub(crate) async fn create(
    runtime: &Gated,
    object: &Value,
    manager: &str,
) -> Result<Option<Value>, ObjectError> {
    let id = identity(object)?;
    let permit = runtime.permit()?;
    let api = api(runtime, &id.gvk, &id.namespace).await?;
    let patch = Patch::Apply(object);
    let params = PatchParams { dry_run: permit.is_dry(), ..PatchParams::apply(manager) };
    match runtime.write(&format!("creating {id}"), patch_raw(&api, &id.name, &params, &patch)).await? {
        Ok(created) => {
            permit.record(|| dry_run_write(runtime, "create", &id, Value::Null, created.clone()));
            Ok(Some(created))
        }
        Err(error) if error.class == ErrorClass::Conflict => Ok(None),
        Err(error) => Err(explain(runtime, &id.gvk, error).await),
    }
}

/// Reads an object. `None` if the object does not exist; an error if its kind does not.
pub(crate) async fn get(runtime: &RuntimeClient, id: &ObjectRef) -> Result<Option<Value>, ObjectError> {
    let api = api(runtime, &id.gvk, &id.namespace).await?;
    let read = async { send(&api, requests(&api).get(&id.name, &GetParams::default())).await };
    match runtime.call(&format!("reading {id}"), read).await {
        Ok(object) => Ok(Some(object)),
        Err(error) => match explain(runtime, &id.gvk, error).await {
            ObjectError::Call(error) if error.class == ErrorClass::NotFound => Ok(None),
            error => Err(error),
        },
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deleted {
    Gone,
    Going,
}

#[derive(Clone, Debug)]
pub(crate) struct Present {
    pub(crate) uid: String,
    pub(crate) deleting: bool,
    pub(crate) marks: Marks,
}

/// Reads an object's metadata. `None` if it or its kind does not exist, or if the kind cannot be read, such as access reviews.
pub(crate) async fn metadata(runtime: &RuntimeClient, id: &ObjectRef) -> Result<Option<Value>, ObjectError> {
    let read = |api: Api<DynamicObject>| async move {
        Ok(runtime.call(&format!("reading {id}"), api.get_metadata(&id.name)).await?)
    };
    match call_existing(runtime, &id.gvk, &id.namespace, read).await {
        Ok(object) => Ok(Some(serde_json::to_value(object.metadata).unwrap_or_default())),
        Err(ObjectError::Kind(_)) => Ok(None),
        Err(error) if error.is_not_found() || error.is_unreadable() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads the engine's view of an object's metadata. `None` as for [`metadata`].
pub(crate) async fn find(runtime: &RuntimeClient, id: &ObjectRef) -> Result<Option<Present>, ObjectError> {
    let metadata = metadata(runtime, id).await?;
    Ok(metadata.map(|metadata| Present {
        uid: metadata["uid"].as_str().unwrap_or_default().to_owned(),
        deleting: metadata["deletionTimestamp"].is_string(),
        marks: Marks::of(&metadata),
    }))
}

/// Merges fields into an existing object and returns it; `None` if it is gone. The fields must be equal in all versions of the kind.
pub(crate) async fn merge(
    runtime: &Gated,
    id: &ObjectRef,
    fields: &Value,
) -> Result<Option<Value>, ObjectError> {
    let permit = runtime.permit()?;
    let params = &PatchParams {
        dry_run: permit.is_dry(),
        field_manager: Some(field_managers::APPLIER.to_owned()),
        ..PatchParams::default()
    };
    let before = stored(runtime, &permit, id).await?;
    let merge = |api: Api<DynamicObject>| async move {
        let patch = Patch::Merge(fields);
        Ok(runtime.write(&format!("changing {id}"), patch_raw(&api, &id.name, params, &patch)).await??)
    };
    match call_existing(runtime, &id.gvk, &id.namespace, merge).await {
        Ok(changed) => {
            permit.record(|| dry_run_write(runtime, "merge", id, before, changed.clone()));
            Ok(Some(changed))
        }
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Deletes an object in the background, if it still has this uid.
pub(crate) async fn delete(runtime: &Gated, id: &ObjectRef, uid: &str) -> Result<Deleted, ObjectError> {
    let permit = runtime.permit()?;
    let params = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Background),
        preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None }),
        dry_run: permit.is_dry(),
        ..DeleteParams::default()
    };
    let before = stored(runtime, &permit, id).await?;
    let params = &params;
    let delete = |api: Api<DynamicObject>| async move {
        Ok(runtime.write(&format!("deleting {id}"), api.delete(&id.name, params)).await??)
    };
    match call_existing(runtime, &id.gvk, &id.namespace, delete).await {
        // A Status means that the object is gone; an object means that finalizers hold it.
        Ok(either) => {
            permit.record(|| dry_run_write(runtime, "delete", id, before, Value::Null));
            Ok(if either.is_right() { Deleted::Gone } else { Deleted::Going })
        }
        Err(ObjectError::Kind(_)) => Ok(Deleted::Gone),
        Err(error) if error.is_not_found() => Ok(Deleted::Gone),
        // Another object has replaced it; the next reconcile reads that one.
        Err(ObjectError::Call(error)) if error.class == ErrorClass::Conflict => Ok(Deleted::Going),
        Err(error) => Err(error),
    }
}

/// Deletes an engine-owned object by its name.
pub(crate) async fn remove(runtime: &Gated, id: &ObjectRef) -> Result<Deleted, ObjectError> {
    match find(runtime, id).await? {
        None => Ok(Deleted::Gone),
        Some(present) if present.deleting => Ok(Deleted::Going),
        Some(present) => delete(runtime, id, &present.uid).await,
    }
}

/// Calls the API of existing objects. Retries in another version if their own is no longer served, and in the storage version if the
/// conversion webhook fails.
async fn call_existing<T, F>(
    runtime: &RuntimeClient,
    gvk: &Gvk,
    namespace: &str,
    call: impl Fn(Api<DynamicObject>) -> F,
) -> Result<T, ObjectError>
where
    F: Future<Output = Result<T, ObjectError>>,
{
    match call(api_of_existing(runtime, gvk, namespace).await?).await {
        Err(ObjectError::Call(error)) if is_outdated(runtime, gvk, &error) => {
            call(api_of_existing(runtime, gvk, namespace).await?).await
        }
        Err(error) if error.is_of_conversion() => match stored_kind(runtime, gvk).await {
            Some(stored) => call(api_of_existing(runtime, &stored, namespace).await?).await,
            None => Err(error),
        },
        result => result,
    }
}

/// Objects of a kind in the whole cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    pub(crate) first: Vec<Listed>,
    pub(crate) more: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) object: ObjectRef,
    pub(crate) owners: Vec<OwnerReference>,
    /// Whether it was created as a default CR, by the engine or the Go manager, and still has a field from then.
    pub(crate) made_as_default: bool,
}

/// Lists metadata of the first objects of a kind; an empty namespace means all. Empty for a kind that is not served.
pub(crate) async fn list(
    runtime: &RuntimeClient,
    gvk: &Gvk,
    namespace: &str,
    limit: u32,
) -> Result<Page, ObjectError> {
    let params = ListParams::default().limit(limit);
    let params = &params;
    let read = |api: Api<DynamicObject>| async move {
        Ok(runtime.call(&format!("looking for a {}", gvk.kind), api.list_metadata(params)).await?)
    };
    match call_existing(runtime, gvk, namespace, read).await {
        Ok(list) => {
            let named = |object: PartialObjectMeta<DynamicObject>| {
                let managers = object.metadata.managed_fields.iter().flatten().map(|entry| &entry.manager);
                Listed {
                    made_as_default: managers.flatten().any(|manager| manager == field_managers::DEFAULT_CR),
                    object: ObjectRef {
                        gvk: gvk.clone(),
                        namespace: object.metadata.namespace.unwrap_or_default(),
                        name: object.metadata.name.unwrap_or_default(),
                    },
                    owners: object.metadata.owner_references.unwrap_or_default(),
                }
            };
            let more = list.metadata.remaining_item_count.and_then(|n| u64::try_from(n).ok());
            // Without a count, the continue token shows at least that there are more.
            let cut = u64::from(list.metadata.continue_.is_some_and(|token| !token.is_empty()));
            Ok(Page { first: list.items.into_iter().map(named).collect(), more: more.unwrap_or(cut) })
        }
        Err(ObjectError::Kind(_)) => Ok(Page::default()),
        Err(error) if error.is_not_found() => Ok(Page::default()),
        Err(error) => Err(error),
    }
}

/// The stored object before a dry-run write; null if there is none, and outside a dry run.
async fn stored(runtime: &Gated, permit: &Permit, id: &ObjectRef) -> Result<Value, ObjectError> {
    if !permit.is_dry() {
        return Ok(Value::Null);
    }
    Ok(get(runtime, id).await?.unwrap_or_default())
}

/// Reports the combined result of several writes to the recorder. Outside a dry run, does nothing.
pub(crate) fn record_dry_run(
    runtime: &Gated,
    operation: &'static str,
    id: &ObjectRef,
    before: &Value,
    after: &Value,
) -> Result<(), ObjectError> {
    runtime.permit()?.record(|| dry_run_write(runtime, operation, id, before.clone(), after.clone()));
    Ok(())
}

fn dry_run_write(
    runtime: &Gated,
    operation: &'static str,
    id: &ObjectRef,
    before: Value,
    after: Value,
) -> DryRunWrite {
    DryRunWrite { side: runtime.side(), operation, object: id.to_string(), before, after }
}
