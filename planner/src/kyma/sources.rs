//! Contents of module versions.

use std::{borrow::Cow, cmp::Ordering, collections::BTreeMap, time::Duration};

use kube::ResourceExt;
use tidewatch_api::{Layer, Manifest, SourceType, names::annotations};

use crate::versions::{Chosen, Origin};

/// Origin of a module's objects, from its component descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Registry and repository prefix, such as `registry.example:5000/modules`.
    pub repo: String,
    /// Digest of the raw-manifest layer.
    pub layer: String,
    /// Layer format.
    pub type_: SourceType,
    /// Component images.
    pub images: Vec<String>,
    /// Further layers by resource name; `None` for duplicate names.
    pub further: BTreeMap<String, Option<Layer>>,
}

impl Source {
    /// Source noted in a Manifest of the chosen version, which is immutable (mission S1.1). So an unavailable registry cannot affect
    /// installed modules. `None` if incomplete or from elsewhere.
    fn noted(manifest: &Manifest, chosen: &Chosen) -> Option<Self> {
        let component = manifest.annotations().get(annotations::FQDN);
        let is_it = manifest.spec.version == chosen.version && component == Some(&chosen.component);
        if !is_it || chosen.origin == Origin::Local || manifest.is_of_runtime_template() {
            return None;
        }
        let image = manifest.install_source().ok()?;
        if chosen.registry.as_ref().is_some_and(|registry| *registry != image.repo) {
            return None;
        }
        let layers = manifest.terms().ok()?.layers;
        let noted = Self {
            repo: image.repo,
            layer: image.ref_,
            type_: image.type_,
            images: manifest.spec.localized_images.clone(),
            further: layers.into_iter().map(|layer| (layer.name.clone(), Some(layer))).collect(),
        };
        noted.layers(&chosen.template.spec.sources).is_ok().then_some(noted)
    }

    /// Further layers that a template names.
    ///
    /// # Errors Names a missing or duplicate layer.
    pub fn layers(&self, names: &[String]) -> Result<Vec<Layer>, String> {
        let layers = names.iter().map(|name| match self.further.get(name) {
            Some(Some(layer)) => Ok(layer.clone()),
            Some(None) => Err(format!("the component has several resources named '{name}'")),
            None => Err(format!(
                "the component has no resource '{name}' in a layer of its own, which the ModuleTemplate names in 'sources'"
            )),
        });
        layers.collect()
    }
}

/// Failure to read a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFault {
    /// Cause.
    pub message: String,
    /// A retry may succeed without any change.
    pub retryable: bool,
    /// Minimum wait, if known.
    pub retry_after: Option<Duration>,
}

/// Component version, its registry and its reader.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComponentVersion {
    /// Component name.
    pub component: String,
    /// Version.
    pub version: String,
    /// Registry named by the template.
    pub registry: Option<String>,
    /// Named by a template in the runtime; read without credentials.
    pub local: bool,
}

impl ComponentVersion {
    /// Identifies a choice's component.
    #[must_use]
    pub fn of(chosen: &Chosen) -> Self {
        Self {
            component: chosen.component.clone(),
            version: chosen.version.clone(),
            registry: chosen.registry.clone(),
            local: chosen.origin == Origin::Local,
        }
    }

    fn cmp_of(&self, chosen: &Chosen) -> Ordering {
        let other = (&chosen.component, &chosen.version, &chosen.registry, chosen.origin == Origin::Local);
        (&self.component, &self.version, &self.registry, self.local).cmp(&other)
    }
}

/// Read sources, or their faults.
#[derive(Clone, Debug, Default)]
pub struct Sources(Vec<(ComponentVersion, Result<Source, SourceFault>)>);

impl Sources {
    /// A choice's source; `None` while being read.
    #[must_use]
    pub fn of(&self, chosen: &Chosen) -> Option<&Result<Source, SourceFault>> {
        let found = self.0.binary_search_by(|(key, _)| key.cmp_of(chosen)).ok()?;
        Some(&self.0[found].1)
    }

    /// Falls back to [`Source::noted`].
    pub(crate) fn of_or_noted(
        &self,
        chosen: &Chosen,
        installed: Option<&Manifest>,
    ) -> Option<Result<Cow<'_, Source>, &SourceFault>> {
        let read = self.of(chosen);
        if let Some(Ok(source)) = read {
            return Some(Ok(Cow::Borrowed(source)));
        }
        match installed.and_then(|manifest| Source::noted(manifest, chosen)) {
            Some(noted) => Some(Ok(Cow::Owned(noted))),
            None => read.map(|read| read.as_ref().map(Cow::Borrowed)),
        }
    }

    /// Returns all faults.
    pub fn faults(&self) -> impl Iterator<Item = &SourceFault> {
        self.0.iter().filter_map(|(_, source)| source.as_ref().err())
    }
}

impl FromIterator<(ComponentVersion, Result<Source, SourceFault>)> for Sources {
    fn from_iter<T: IntoIterator<Item = (ComponentVersion, Result<Source, SourceFault>)>>(all: T) -> Self {
        // Sorted and unique.
        Self(all.into_iter().collect::<BTreeMap<_, _>>().into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn chosen(component: &str, version: &str, registry: Option<&str>, origin: Origin) -> Chosen {
        let template = serde_json::json!({"metadata": {"name": "t"}, "spec": {"descriptor": {}}});
        Chosen {
            component: component.into(),
            version: version.into(),
            registry: registry.map(Into::into),
            template: Arc::new(serde_json::from_value(template).unwrap()),
            origin,
        }
    }

    #[test]
    fn each_choice_finds_its_own_source() {
        let mut all = Vec::new();
        for component in ["a", "b"] {
            for version in ["1.0.0", "1.1.0"] {
                for registry in [None, Some("x.example"), Some("y.example/z")] {
                    for origin in [Origin::Local, Origin::Channel] {
                        all.push(chosen(component, version, registry, origin));
                    }
                }
            }
        }
        let fault = |n: usize| SourceFault { message: n.to_string(), retryable: false, retry_after: None };
        let keyed =
            || all.iter().enumerate().map(|(n, chosen)| (ComponentVersion::of(chosen), Err(fault(n))));
        let sources: Sources = keyed().rev().chain(keyed()).collect();
        for (n, chosen) in all.iter().enumerate() {
            assert_eq!(sources.of(chosen), Some(&Err(fault(n))));
        }
        assert_eq!(sources.faults().count(), all.len());
        assert_eq!(sources.of(&chosen("c", "1.0.0", None, Origin::Channel)), None);
        let pinned = chosen("a", "1.0.0", None, Origin::Pin);
        assert_eq!(sources.of(&pinned), Some(&Err(fault(1))), "how it was chosen makes no difference");
    }
}
