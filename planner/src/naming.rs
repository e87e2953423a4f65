//! Names that the Go lifecycle manager and module operators depend on.

const MAX: usize = 62;

/// Returns `<kyma>-<last segment>-<fnv32>`, cut to 62 characters. Migration from the Go manager requires equal names.
#[must_use]
pub fn manifest_name(kyma: &str, component: &str, module: &str) -> String {
    let segment = component.rsplit('/').next().unwrap_or(component);
    let hash = fnv1_32(component.bytes().chain(module.bytes()));
    let mut name = format!("{kyma}-{segment}-{hash}");
    // Never splits a non-ASCII character.
    let mut end = name.len().min(MAX);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
    name
}

fn fnv1_32(bytes: impl IntoIterator<Item = u8>) -> u32 {
    bytes.into_iter().fold(0x811c_9dc5, |hash, b| hash.wrapping_mul(0x0100_0193) ^ u32::from(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fnv_hashes_of_known_values() {
        // FNV specification.
        assert_eq!(fnv1_32(*b""), 0x811c_9dc5);
        assert_eq!(fnv1_32(*b"foobar"), 0x31f0_b262);
    }

    #[test]
    fn manifest_names_equal_the_go_managers() {
        let name =
            manifest_name("kyma-sample", "kyma-project.io/module/template-operator", "template-operator");
        assert_eq!(name, "kyma-sample-template-operator-2235966007");
    }

    #[test]
    fn manifest_names_fit_kubernetes_limits() {
        let name = manifest_name(&"k".repeat(60), "kyma-project.io/module/x", "x");
        assert_eq!(name.len(), MAX);
    }
}
