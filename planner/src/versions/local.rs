//! Templates in a runtime: a tenant's, and unvalidated.

use std::collections::BTreeSet;

use kube::core::DynamicObject;
use semver::Version;
use tidewatch_api::ModuleTemplate;

use super::legacy;
use crate::notice::{About, Notice};

/// Maximum per runtime.
pub const MAX_TEMPLATES: usize = 64;
/// JSON bytes; most is copied to a Manifest in KCP.
const MAX_BYTES: usize = 64 * 1024;
/// Version and component name, in bytes, as in KCP's CRDs.
const MAX_NAMES: (usize, usize) = (32, 255);

/// Reason to ignore a template.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// Unreadable.
    #[error("it is not a ModuleTemplate")]
    Malformed,
    /// Too large.
    #[error("it is larger than {MAX_BYTES} bytes")]
    Large,
    /// No version.
    #[error("it has no version of the form 1.2.3, neither in spec.version nor in its descriptor")]
    Version,
    /// Not a channel's name: messages list channels.
    #[error("spec.channel is not the name of a channel: 3 to 32 lower-case letters")]
    Channel,
    /// No component.
    #[error("spec.descriptor.component.name is not the name of an OCM component")]
    Component,
    /// Only KCP has mandatory modules.
    #[error("only KCP makes a module mandatory")]
    Mandatory,
    /// Incomplete default CR.
    #[error("spec.data has no apiVersion, kind and metadata.name")]
    Data,
}

/// Validates a template; `None` if its module is not `asked` for.
pub fn usable(
    mut object: DynamicObject,
    requested: &BTreeSet<&str>,
) -> Result<Option<ModuleTemplate>, Unusable> {
    object.metadata.managed_fields = None;
    let value = serde_json::to_value(object).map_err(|_| Unusable::Malformed)?;
    let size = serde_json::to_vec(&value).map_or(usize::MAX, |text| text.len());
    let template: ModuleTemplate = serde_json::from_value(value).map_err(|_| Unusable::Malformed)?;
    if !template.module_name().is_some_and(|module| requested.contains(module)) {
        return Ok(None);
    }
    if size > MAX_BYTES {
        return Err(Unusable::Large);
    }
    if template.spec.mandatory == Some(true) {
        return Err(Unusable::Mandatory);
    }
    let channel = template.spec.channel.as_str();
    let is_channel = (3..=32).contains(&channel.len()) && channel.bytes().all(|b| b.is_ascii_lowercase());
    if !channel.is_empty() && !is_channel {
        return Err(Unusable::Channel);
    }
    let version = legacy::version(&template).filter(|v| v.len() <= MAX_NAMES.0);
    version.and_then(|v| Version::parse(v).ok()).ok_or(Unusable::Version)?;
    let good = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"./-_".contains(&c);
    let component = legacy::component(&template, "name").filter(|name| name.len() <= MAX_NAMES.1);
    component.filter(|name| name.bytes().all(good)).ok_or(Unusable::Component)?;
    let whole = |cr: &tidewatch_api::EmbeddedObject| {
        ![cr.api_version(), cr.kind(), cr.name()].iter().any(|text| text.is_empty())
    };
    if !template.spec.data.as_ref().is_none_or(whole) {
        return Err(Unusable::Data);
    }
    Ok(Some(template))
}

/// Notice to the user.
#[must_use]
pub fn ignored(name: &str, why: &Unusable) -> Notice {
    Notice::warning(
        About::RuntimeKyma,
        "ModuleTemplateIgnored",
        format!("the ModuleTemplate '{name}' is ignored: {why}"),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(spec: &Value) -> Result<Option<ModuleTemplate>, Unusable> {
        let mut object = json!({"apiVersion": "operator.kyma-project.io/v1beta2", "kind": "ModuleTemplate",
            "metadata": {"name": "raft-mine"}, "spec": {"moduleName": "raft", "channel": "regular", "version": "0.1.0",
            "descriptor": {"component": {"name": "tidewatch.dev/module/raft", "version": "0.1.0"}}}});
        object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        usable(serde_json::from_value(object).unwrap(), &BTreeSet::from(["raft"]))
    }

    #[test]
    fn only_complete_templates_of_requested_modules_count() {
        assert_eq!(read(&json!({})).unwrap().unwrap().module_name(), Some("raft"));
        assert!(read(&json!({"moduleName": "buoy"})).unwrap().is_none());
        let why = |spec: Value| read(&spec).unwrap_err().to_string();
        assert!(why(json!({"version": "latest"})).contains("no version"));
        assert!(why(json!({"version": format!("1.0.0-{}", "a".repeat(40))})).contains("no version"));
        assert!(why(json!({"channel": "a\r\nb"})).contains("spec.channel"));
        assert!(why(json!({"channel": "c".repeat(33)})).contains("spec.channel"));
        assert!(read(&json!({"channel": ""})).unwrap().is_some());
        assert!(why(json!({"descriptor": {}})).contains("component.name"));
        assert!(why(json!({"descriptor": {"component": {"name": "a b?c"}}})).contains("component.name"));
        assert!(why(json!({"mandatory": true})).contains("mandatory"));
        assert!(why(json!({"data": {"kind": "Raft"}})).contains("spec.data"));
        assert!(why(json!({"info": {"repository": "x".repeat(70_000)}})).contains("larger"));
        assert!(why(json!({"channel": 7})).contains("not a ModuleTemplate"));
    }

    #[test]
    fn messages_do_not_repeat_tenant_content() {
        let secret = read(&json!({"version": "hush-hush"})).unwrap_err();
        assert!(!ignored("raft-mine", &secret).message.contains("hush"));
    }
}
