use tidewatch_oci::ComponentDescriptor;

use crate::assert_message;

/// A component descriptor of a registry: YAML, JSON, tar or gzip.
///
/// # Panics
/// If a promise is broken.
pub fn component_descriptor(data: &[u8]) {
    let prefix = "application/vnd.ocm.software.component-descriptor.v2";
    for media_type in ["", &format!("{prefix}+yaml"), &format!("{prefix}+yaml+tar")] {
        let descriptor = match ComponentDescriptor::parse(data, media_type) {
            Ok(descriptor) => descriptor,
            Err(error) => {
                assert_message(&error.to_string());
                continue;
            }
        };
        assert!(!descriptor.name.is_empty() && !descriptor.version.is_empty());
        assert!(descriptor.resources.len() <= 2000);
        assert!(descriptor.images().count() <= descriptor.resources.len());
        match descriptor.raw_manifest() {
            Ok(resource) => {
                assert!(resource.local_blob().is_some(), "the manifests are a layer of the artifact");
            }
            Err(error) => assert_message(&error.to_string()),
        }
        match descriptor.default_cr() {
            Ok(resource) => assert!(resource.is_none_or(|resource| resource.local_blob().is_some())),
            Err(error) => assert_message(&error.to_string()),
        }
    }
}
