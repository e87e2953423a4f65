//! Chooses module versions.
//!
//! Reconciles call [`choose`]; gates call [`may_replace`] and [`deprecation`]. The catalog feed compares [`Answer`]s.

mod answer;
mod deprecation;
mod legacy;
pub mod local;
mod order;
mod resolve;

use std::sync::Arc;

pub use answer::{Answer, VersionRequest, deprecations_changed};
pub use deprecation::{Deprecation, Listed, NEAR, Phase, deprecation};
pub use legacy::registry as registry_of;
pub use legacy::{highest, is_legacy};
pub use order::{Direction, direction, may_replace};
pub use resolve::released_as;
pub use resolve::unreleased_pin;
pub use resolve::{ModuleRequest, Origin, resolve};
use tidewatch_api::{KymaSpec, Module, ModuleReleaseMeta, ModuleTemplate, State};

/// KCP's catalog, read-only.
pub trait Catalog {
    /// Release meta by module name.
    fn release(&self, module: &str) -> Option<Arc<ModuleReleaseMeta>>;
    /// Template by object name.
    fn template(&self, name: &str) -> Option<Arc<ModuleTemplate>>;
    /// All templates of a module; only needed without a release meta.
    fn templates_of(&self, module: &str) -> Vec<Arc<ModuleTemplate>>;
}

/// Listed module and its version.
#[derive(Clone, Debug)]
pub struct ResolvedModule {
    /// User's entry.
    pub entry: Module,
    /// Effective channel; empty if pinned.
    pub channel: String,
    /// Release meta.
    pub release: Option<Arc<ModuleReleaseMeta>>,
    /// Version, or fault.
    pub outcome: Result<Chosen, Fault>,
}

/// Chosen version.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// Version.
    pub version: String,
    /// OCM component name.
    pub component: String,
    /// Template's registry without scheme; used if the platform allows it.
    pub registry: Option<String>,
    /// Template.
    pub template: Arc<ModuleTemplate>,
    /// Origin.
    pub origin: Origin,
}

/// Reason for no version; shown to users with a remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// No such ModuleReleaseMeta.
    #[error(
        "there is no module '{module}': no ModuleReleaseMeta of that name exists; tried again when one appears"
    )]
    UnknownModule {
        /// Module.
        module: String,
    },
    /// No such channel.
    #[error(
        "module '{module}' has no version in channel '{channel}' (it has: {available}); ask for another channel; tried \
         again when the module is released in this one"
    )]
    NoSuchChannel {
        /// Module.
        module: String,
        /// Requested channel.
        channel: String,
        /// Existing channels.
        available: String,
    },
    /// `none` has no versions.
    #[error("module '{module}' asks for channel 'none', which has no versions; choose another channel")]
    ChannelNone {
        /// Module.
        module: String,
    },
    /// Mandatory modules need no request.
    #[error(
        "module '{module}' is mandatory and installed without being asked for; remove it from spec.modules"
    )]
    Mandatory {
        /// Module.
        module: String,
    },
    /// No such version.
    #[error(
        "module '{module}' has no version {version} (it has: {available}); ask for one of these, or for a channel"
    )]
    NotOffered {
        /// Module.
        module: String,
        /// Requested version.
        version: String,
        /// Existing versions.
        available: String,
    },
    /// Several legacy templates for a channel.
    #[error(
        "module '{module}' has more than one ModuleTemplate for channel '{channel}' ({templates}); tried again when \
         one of them goes"
    )]
    Ambiguous {
        /// Module.
        module: String,
        /// Channel.
        channel: String,
        /// Template names.
        templates: String,
    },
    /// Lower than installed.
    #[error(
        "version {wanted} is lower than the installed {installed}: a module is not downgraded, and {installed} stays; \
         it goes on with the next higher version, or remove the module and add it again"
    )]
    Downgrade {
        /// Installed version.
        installed: String,
        /// Wanted version.
        wanted: String,
    },
    /// An invalid version has no order.
    #[error(
        "version {wanted} cannot be compared with the installed {installed}, which stays: one of them is not of the \
         form 1.2.3; it goes on with a version that can be"
    )]
    NotComparable {
        /// Installed version.
        installed: String,
        /// Wanted version.
        wanted: String,
    },
    /// No OCM component.
    #[error("the ModuleReleaseMeta '{module}' has no ocmComponentName; tried again when it changes")]
    NoComponent {
        /// Module.
        module: String,
    },
    /// No component or version in a legacy template.
    #[error(
        "the ModuleTemplate '{template}' has no descriptor with the name and the version of a component; tried again \
         when it changes"
    )]
    NoDescriptor {
        /// Template.
        template: String,
    },
    /// No template.
    #[error(
        "module '{module}' has no ModuleTemplate '{template}' for version {version}; tried again when it appears"
    )]
    NoTemplate {
        /// Module.
        module: String,
        /// Version.
        version: String,
        /// Expected name.
        template: String,
    },
}

impl Fault {
    /// Warning, because installed modules continue to run, except for a missing channel.
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

/// Chooses for every listed module. `local`: allowed templates of the runtime.
#[must_use]
pub fn choose(
    wanted: &KymaSpec,
    catalog: &dyn Catalog,
    local: &[Arc<ModuleTemplate>],
) -> Vec<ResolvedModule> {
    wanted
        .modules
        .iter()
        .map(|module| {
            let request = VersionRequest::of(module, wanted);
            let outcome = resolve(request.for_module(&module.name), catalog, local);
            let release = catalog.release(&module.name);
            ResolvedModule { entry: module.clone(), channel: request.channel, release, outcome }
        })
        .collect()
}

#[cfg(test)]
pub(crate) mod fixtures {
    use std::collections::HashMap;

    use serde_json::json;

    use super::*;

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
