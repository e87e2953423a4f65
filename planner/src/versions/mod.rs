//! Which version of a module a Kyma gets, and why not.
//!
//! Who calls it: the Kyma's reconcile, for every entry of the user's list, before the plan is made ([`choose`], by
//! [`resolve`]); the gate of versions in the Kyma's plan asks [`may_replace`] for what is installed, and
//! [`deprecation`] for what to tell the user. Whoever watches the catalog compares [`Answer`]s to learn whom a change
//! concerns.

mod answer;
mod deprecation;
mod legacy;
pub mod local;
mod order;
mod resolve;

use std::sync::Arc;

pub use answer::{Answer, Want, ends_changed};
pub use deprecation::{Deprecation, Listed, NEAR, Phase, deprecation};
pub use legacy::registry as registry_of;
pub use legacy::{highest, is_old};
pub use order::{Step, may_replace, step};
pub use resolve::further;
pub use resolve::released_as;
pub use resolve::{Origin, Wish, resolve};
use tidewatch_api::{KymaSpec, Module, ModuleReleaseMeta, ModuleTemplate, State};

/// What KCP offers. Looking things up is the only thing a planner asks of it.
pub trait Catalog {
    /// The release meta of a module; its object name is the module's name.
    fn release(&self, module: &str) -> Option<Arc<ModuleReleaseMeta>>;
    /// A template by object name.
    fn template(&self, name: &str) -> Option<Arc<ModuleTemplate>>;
    /// All templates of a module, of the old kind and the new. Asked for only where it has no release meta.
    fn templates_of(&self, module: &str) -> Vec<Arc<ModuleTemplate>>;
}

/// A module of the user's list and the version it gets.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The user's entry.
    pub module: Module,
    /// The channel that counts for it; empty for a version that is asked for by number.
    pub channel: String,
    /// The module's release meta, if there is one.
    pub release: Option<Arc<ModuleReleaseMeta>>,
    /// The version, or why there is none.
    pub outcome: Result<Chosen, Fault>,
}

/// The version a module gets.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The concrete version.
    pub version: String,
    /// Name of the OCM component that holds it.
    pub component: String,
    /// The registry that the template names for it, without scheme; it counts if the platform allows it.
    pub registry: Option<String>,
    /// Its template.
    pub template: Arc<ModuleTemplate>,
    /// Where it comes from.
    pub origin: Origin,
}

/// Why a module has no version. The text is shown to the user and says what ends it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// No ModuleReleaseMeta of that name.
    #[error(
        "there is no module '{module}': no ModuleReleaseMeta of that name exists; tried again when one appears"
    )]
    UnknownModule {
        /// The module.
        module: String,
    },
    /// The channel is not offered.
    #[error(
        "module '{module}' has no version in channel '{channel}' (it has: {known}); ask for another channel; tried \
         again when the module is released in this one"
    )]
    NoSuchChannel {
        /// The module.
        module: String,
        /// The channel asked for.
        channel: String,
        /// Channels there are.
        known: String,
    },
    /// `none` is not a channel one can follow.
    #[error("module '{module}' asks for channel 'none', which has no versions; choose another channel")]
    ChannelNone {
        /// The module.
        module: String,
    },
    /// Mandatory modules come by themselves.
    #[error(
        "module '{module}' is mandatory and installed without being asked for; remove it from spec.modules"
    )]
    Mandatory {
        /// The module.
        module: String,
    },
    /// The version that is asked for is not offered.
    #[error(
        "module '{module}' has no version {version} (it has: {known}); ask for one of these, or for a channel"
    )]
    NotOffered {
        /// The module.
        module: String,
        /// The version asked for.
        version: String,
        /// Versions there are.
        known: String,
    },
    /// Several templates of the old kind for one channel.
    #[error(
        "module '{module}' has more than one ModuleTemplate for channel '{channel}' ({templates}); tried again when \
         one of them goes"
    )]
    Ambiguous {
        /// The module.
        module: String,
        /// The channel.
        channel: String,
        /// Their names.
        templates: String,
    },
    /// The version is lower than the installed one.
    #[error(
        "version {wanted} is lower than the installed {installed}: a module is not downgraded, and {installed} stays; \
         it goes on with the next higher version, or remove the module and add it again"
    )]
    Downgrade {
        /// The installed version.
        installed: String,
        /// The version it would get.
        wanted: String,
    },
    /// One of the versions is none, so that nobody can say which is lower.
    #[error(
        "version {wanted} cannot be compared with the installed {installed}, which stays: one of them is not of the \
         form 1.2.3; it goes on with a version that can be"
    )]
    NotComparable {
        /// The installed version.
        installed: String,
        /// The version it would get.
        wanted: String,
    },
    /// The release meta names no OCM component.
    #[error("the ModuleReleaseMeta '{module}' has no ocmComponentName; tried again when it changes")]
    NoComponent {
        /// The module.
        module: String,
    },
    /// A template of the old kind says neither its component nor its version.
    #[error(
        "the ModuleTemplate '{template}' has no descriptor with the name and the version of a component; tried again \
         when it changes"
    )]
    NoDescriptor {
        /// The template.
        template: String,
    },
    /// The version has no template.
    #[error(
        "module '{module}' has no ModuleTemplate '{template}' for version {version}; tried again when it appears"
    )]
    NoTemplate {
        /// The module.
        module: String,
        /// The version.
        version: String,
        /// The expected object name.
        template: String,
    },
}

impl Fault {
    /// The state of a module with this fault (contract, section 5.7). One that is installed keeps running its old
    /// version, so that is a warning; a channel that is not there is an error all the same, since the user asked
    /// for it.
    #[must_use]
    pub const fn state(&self, installed: bool) -> State {
        match self {
            Self::Mandatory { .. } | Self::Downgrade { .. } | Self::NotComparable { .. } => State::Warning,
            Self::NoSuchChannel { .. } | Self::ChannelNone { .. } => State::Error,
            _ if installed => State::Warning,
            _ => State::Error,
        }
    }
}

/// Chooses a version for every module of the user's list. `local` are the runtime's own templates, where KCP allows
/// them for this Kyma.
#[must_use]
pub fn choose(wanted: &KymaSpec, catalog: &dyn Catalog, local: &[Arc<ModuleTemplate>]) -> Vec<Choice> {
    wanted
        .modules
        .iter()
        .map(|module| {
            let want = Want::of(module, wanted);
            let outcome = resolve(want.wish(&module.name), catalog, local);
            let release = catalog.release(&module.name);
            Choice { module: module.clone(), channel: want.channel, release, outcome }
        })
        .collect()
}

#[cfg(test)]
pub(crate) mod fixtures {
    use std::collections::HashMap;

    use serde_json::json;

    use super::*;

    /// A catalog of two modules: `lighthouse` (regular 1.0.0, fast 1.1.0) and mandatory `guard`.
    #[derive(Default, Debug)]
    pub(crate) struct FakeCatalog {
        pub(crate) releases: HashMap<String, Arc<ModuleReleaseMeta>>,
        pub(crate) templates: HashMap<String, Arc<ModuleTemplate>>,
    }

    impl FakeCatalog {
        pub(crate) fn put(&mut self, template: Arc<ModuleTemplate>) {
            self.templates.insert(template.metadata.name.clone().unwrap(), template);
        }
    }

    impl Catalog for FakeCatalog {
        fn release(&self, module: &str) -> Option<Arc<ModuleReleaseMeta>> {
            self.releases.get(module).cloned()
        }
        fn template(&self, name: &str) -> Option<Arc<ModuleTemplate>> {
            self.templates.get(name).cloned()
        }
        fn templates_of(&self, module: &str) -> Vec<Arc<ModuleTemplate>> {
            self.templates.values().filter(|t| t.module_name() == Some(module)).cloned().collect()
        }
    }

    pub(crate) fn catalog() -> FakeCatalog {
        let mut catalog = FakeCatalog::default();
        let release = |value| Arc::new(serde_json::from_value::<ModuleReleaseMeta>(value).unwrap());
        catalog.releases.insert(
            "lighthouse".into(),
            release(json!({"metadata": {"name": "lighthouse"}, "spec": {
                "moduleName": "lighthouse", "ocmComponentName": "tidewatch.dev/module/lighthouse",
                "channels": [{"channel": "regular", "version": "1.0.0"}, {"channel": "fast", "version": "1.1.0"},
                             {"channel": "broken", "version": "9.9.9"}]}})),
        );
        catalog.releases.insert(
            "guard".into(),
            release(json!({"metadata": {"name": "guard"}, "spec": {
                "moduleName": "guard", "ocmComponentName": "tidewatch.dev/module/guard",
                "mandatory": {"version": "2.0.0"}}})),
        );
        for version in ["1.0.0", "1.1.0"] {
            let name = format!("lighthouse-{version}");
            let template = json!({"metadata": {"name": name, "namespace": "kcp-system", "generation": 1}, "spec": {
                "moduleName": "lighthouse", "version": version, "descriptor": {},
                "data": {"apiVersion": "lighthouse.tidewatch.dev/v1alpha1", "kind": "Beacon",
                         "metadata": {"name": "default"}, "spec": {"height": 40}}}});
            catalog.templates.insert(name, Arc::new(serde_json::from_value(template).unwrap()));
        }
        catalog
    }
}

#[cfg(test)]
mod tests;
