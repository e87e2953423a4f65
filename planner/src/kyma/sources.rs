//! What the versions of modules consist of.

use std::{borrow::Cow, cmp::Ordering, collections::BTreeMap, time::Duration};

use kube::ResourceExt;
use tidewatch_api::{Layer, Manifest, SourceType, names::annotations};

use crate::versions::{Chosen, Origin};

/// Where a module's objects come from, read from its component descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Registry and repository prefix, for example `registry.example:5000/modules`.
    pub repo: String,
    /// Digest of the raw-manifest layer.
    pub layer: String,
    /// How the layer is packed.
    pub type_: SourceType,
    /// Images of the component.
    pub images: Vec<String>,
    /// Its further layers by the names of their resources; `None` where several have the name.
    pub further: BTreeMap<String, Option<Layer>>,
}

impl Source {
    /// What a Manifest of the chosen version says of it. A version is immutable (mission S1.1), so that is all that its descriptor
    /// would say, and a registry that cannot be asked after a start changes nothing of what is installed. `None` if it is another version,
    /// one that nobody has released, from another registry, or if the Manifest does not know all that is wanted of it.
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

    /// The layers that a template names besides the raw manifest.
    ///
    /// # Errors
    /// Says which of them there is none of.
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

/// Why a descriptor could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFault {
    /// For people; names the cause.
    pub message: String,
    /// Whether trying again can help without anybody changing anything.
    pub retryable: bool,
    /// How long that is of no use at least, if anybody knows.
    pub retry_after: Option<Duration>,
}

/// A version of a component, where it is, and in whose name it is read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComponentVersion {
    /// Name of the component.
    pub component: String,
    /// Its version.
    pub version: String,
    /// The registry that its template names, if it names one.
    pub registry: Option<String>,
    /// Whether a template that was made in the runtime names it: it is read without credentials then.
    pub local: bool,
}

impl ComponentVersion {
    /// The one that a choice needs.
    #[must_use]
    pub fn of(chosen: &Chosen) -> Self {
        Self {
            component: chosen.component.clone(),
            version: chosen.version.clone(),
            registry: chosen.registry.clone(),
            local: chosen.origin == Origin::Local,
        }
    }

    /// How it stands to the one that a choice needs, in the order of [`Ord`].
    fn cmp_of(&self, chosen: &Chosen) -> Ordering {
        let other = (&chosen.component, &chosen.version, &chosen.registry, chosen.origin == Origin::Local);
        (&self.component, &self.version, &self.registry, self.local).cmp(&other)
    }
}

/// What versions consist of, or why nobody knows.
#[derive(Clone, Debug, Default)]
pub struct Sources(Vec<(ComponentVersion, Result<Source, SourceFault>)>);

impl Sources {
    /// That of a choice; `None` while it is being read.
    #[must_use]
    pub fn of(&self, chosen: &Chosen) -> Option<&Result<Source, SourceFault>> {
        let found = self.0.binary_search_by(|(key, _)| key.cmp_of(chosen)).ok()?;
        Some(&self.0[found].1)
    }

    /// The same, or where it was not read what a Manifest of the version says of it ([`Source::noted`]).
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

    /// Those that could not be read.
    pub fn faults(&self) -> impl Iterator<Item = &SourceFault> {
        self.0.iter().filter_map(|(_, source)| source.as_ref().err())
    }
}

impl FromIterator<(ComponentVersion, Result<Source, SourceFault>)> for Sources {
    fn from_iter<T: IntoIterator<Item = (ComponentVersion, Result<Source, SourceFault>)>>(all: T) -> Self {
        // Sorted, and each only once.
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

    /// Neither another version, nor another registry, nor another reader's is taken for it.
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
