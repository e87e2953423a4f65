//! Kinds in a runtime: their APIs, versions, scopes and CRDs.

use kube::{Api, api::DynamicObject, core::GroupVersionKind};
use serde_json::Value;
use tidewatch_api::object::{Gvk, ObjectRef};
use tidewatch_deployer::bundle::Scope;

use super::{error::ObjectError, get};
use crate::clusters::{
    self,
    client::RuntimeClient,
    error::{ErrorClass, RuntimeError},
    mapper::{MapError, Mapped, Missing},
};

fn kube_gvk(gvk: &Gvk) -> GroupVersionKind {
    GroupVersionKind { group: gvk.group.clone(), version: gvk.version.clone(), kind: gvk.kind.clone() }
}

pub(crate) async fn api(
    runtime: &RuntimeClient,
    gvk: &Gvk,
    namespace: &str,
) -> Result<Api<DynamicObject>, ObjectError> {
    Ok(api_of(runtime, &runtime.mapper().resolve(runtime, &kube_gvk(gvk)).await?, namespace))
}

/// API of existing objects; their own version may no longer be served.
pub(super) async fn api_of_existing(
    runtime: &RuntimeClient,
    gvk: &Gvk,
    namespace: &str,
) -> Result<Api<DynamicObject>, ObjectError> {
    Ok(api_of(runtime, &runtime.mapper().resolve_any(runtime, &kube_gvk(gvk)).await?, namespace))
}

fn api_of(runtime: &RuntimeClient, mapped: &Mapped, namespace: &str) -> Api<DynamicObject> {
    if namespace.is_empty() {
        Api::all_with(runtime.kube(), &mapped.resource)
    } else {
        mapped.api(runtime, namespace)
    }
}

/// Whether the whole path is missing, not an object: the remembered version is no longer served. Forgets the mapping then.
pub(super) fn is_outdated(runtime: &RuntimeClient, gvk: &Gvk, error: &RuntimeError) -> bool {
    let is_of_object = error.status().is_none_or(|status| status.reason == "NotFound");
    let outdated = error.class == ErrorClass::NotFound && !is_of_object;
    if outdated {
        runtime.mapper().forget(&kube_gvk(gvk));
    }
    outdated
}

/// Returns the kind in a served version: the CRD's storage version, else its own, else any; unchanged if none is served.
pub(crate) async fn served(runtime: &RuntimeClient, gvk: Gvk) -> Result<Gvk, ObjectError> {
    runtime.mapper().forget(&kube_gvk(&gvk));
    match runtime.mapper().resolve_any(runtime, &kube_gvk(&gvk)).await.map_err(ObjectError::from) {
        Ok(mapped) => {
            let served = Gvk { version: mapped.resource.version, ..gvk };
            Ok(stored_kind(runtime, &served).await.unwrap_or(served))
        }
        Err(ObjectError::Kind(_)) => Ok(gvk),
        Err(error) => Err(error),
    }
}

pub(crate) async fn scope(runtime: &RuntimeClient, gvk: &Gvk) -> Result<Option<Scope>, ObjectError> {
    match runtime.mapper().resolve(runtime, &kube_gvk(gvk)).await.map_err(ObjectError::from) {
        Ok(mapped) => Ok(Some(match mapped.scope {
            clusters::Scope::Namespaced => Scope::Namespaced,
            clusters::Scope::Cluster => Scope::Cluster,
        })),
        Err(ObjectError::Kind(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) fn forget(runtime: &RuntimeClient, gvk: &Gvk) {
    runtime.mapper().forget(&kube_gvk(gvk));
}

/// Finds out whether a 404 means a missing object or a missing kind. An API server that names an object serves its kind, so only other
/// answers cost a discovery.
pub(crate) async fn explain(runtime: &RuntimeClient, gvk: &Gvk, error: RuntimeError) -> ObjectError {
    let details = error.status().and_then(|status| status.details.as_ref());
    if error.class != ErrorClass::NotFound || details.is_some_and(|details| !details.name.is_empty()) {
        return error.into();
    }
    match runtime.mapper().missing(runtime, &kube_gvk(gvk)).await {
        Ok(Missing::Kind) => {
            MapError::KindMissing { kind: gvk.kind.clone(), api_version: gvk.api_version() }.into()
        }
        Ok(Missing::Object) => error.into(),
        Err(error) => error.into(),
    }
}

/// The kind that a CRD defines, in its storage version if served, else in the first served version. Reading in the storage version needs
/// no conversion webhook.
pub(crate) fn defined_kind(crd: &Value) -> Option<Gvk> {
    let spec = &crd["spec"];
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let served = || spec["versions"].as_array().into_iter().flatten().filter(|v| v["served"] == true);
    let version = served().find(|v| v["storage"] == true).or_else(|| served().next())?;
    let (group, kind) = (text(&spec["group"]), text(&spec["names"]["kind"]));
    Some(Gvk { group, version: text(&version["name"]), kind })
}

pub(crate) async fn crd_of(runtime: &RuntimeClient, gvk: &Gvk) -> Option<ObjectRef> {
    let name = format!("{}.{}", plural(runtime, gvk).await?, gvk.group);
    let gvk = Gvk::of("apiextensions.k8s.io/v1", "CustomResourceDefinition");
    Some(ObjectRef { gvk, namespace: String::new(), name })
}

/// The kind in its storage version; `None` if that is unknown or no other one.
pub(super) async fn stored_kind(runtime: &RuntimeClient, gvk: &Gvk) -> Option<Gvk> {
    let crd = get(runtime, &crd_of(runtime, gvk).await?).await.ok()??;
    defined_kind(&crd).filter(|stored| stored.version != gvk.version)
}

pub(crate) async fn plural(runtime: &RuntimeClient, gvk: &Gvk) -> Option<String> {
    let mapped = runtime.mapper().resolve_any(runtime, &kube_gvk(gvk)).await;
    mapped.ok().map(|mapped| mapped.resource.plural)
}

/// The plural name of a kind that is served in one of these versions and can be watched.
pub(crate) async fn watchable<'a>(
    runtime: &RuntimeClient,
    group: &str,
    kind: &str,
    versions: impl IntoIterator<Item = &'a String>,
) -> Result<Option<String>, ObjectError> {
    for version in versions {
        let gvk = Gvk { group: group.to_owned(), version: version.clone(), kind: kind.to_owned() };
        match runtime.mapper().resolve(runtime, &kube_gvk(&gvk)).await.map_err(ObjectError::from) {
            Ok(mapped) if mapped.watchable => return Ok(Some(mapped.resource.plural)),
            Ok(_) | Err(ObjectError::Kind(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
