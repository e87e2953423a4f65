//! Which version of a module a Kyma gets, and why not.

use std::sync::Arc;

use tidewatch_api::{KymaSpec, Module, ModuleReleaseMeta, ModuleTemplate, State, names};

/// What KCP offers. Looking things up is the only thing a planner asks of it.
pub trait Catalog {
    /// The release meta of a module; its object name is the module's name.
    fn release(&self, module: &str) -> Option<Arc<ModuleReleaseMeta>>;
    /// A template by object name.
    fn template(&self, name: &str) -> Option<Arc<ModuleTemplate>>;
}

/// A module of the user's list and the version it gets.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The user's entry.
    pub module: Module,
    /// The channel that counts for it.
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
    /// Its template.
    pub template: Arc<ModuleTemplate>,
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
        "module '{module}' has no version in channel '{channel}' (it has: {known}); tried again when its \
         ModuleReleaseMeta changes"
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
    /// The release meta names no OCM component.
    #[error("the ModuleReleaseMeta '{module}' has no ocmComponentName; tried again when it changes")]
    NoComponent {
        /// The module.
        module: String,
    },
    /// The channel's version has no template.
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
    /// The state of a module with this fault. One that is installed already keeps running its old
    /// version, so that is a warning (contract, section 5.7).
    #[must_use]
    pub const fn state(&self, installed: bool) -> State {
        match self {
            Self::Mandatory { .. } => State::Warning,
            _ if installed => State::Warning,
            _ => State::Error,
        }
    }
}

/// Chooses a version for every module of the user's list.
#[must_use]
pub fn choose(wanted: &KymaSpec, catalog: &dyn Catalog) -> Vec<Choice> {
    wanted
        .modules
        .iter()
        .map(|module| {
            let channel = channel_of(module, wanted);
            let outcome = choose_one(&module.name, &channel, catalog);
            Choice { module: module.clone(), channel, release: catalog.release(&module.name), outcome }
        })
        .collect()
}

/// The module's channel, else the Kyma's, else the default.
fn channel_of(module: &Module, wanted: &KymaSpec) -> String {
    [module.channel.as_deref(), Some(wanted.channel.as_str())]
        .into_iter()
        .flatten()
        .find(|c| !c.is_empty())
        .unwrap_or(names::DEFAULT_CHANNEL)
        .to_owned()
}

fn choose_one(module: &str, channel: &str, catalog: &dyn Catalog) -> Result<Chosen, Fault> {
    let owned = || module.to_owned();
    if channel == names::CHANNEL_NONE {
        return Err(Fault::ChannelNone { module: owned() });
    }
    let release = catalog.release(module).ok_or_else(|| Fault::UnknownModule { module: owned() })?;
    if release.mandatory_version().is_some() {
        return Err(Fault::Mandatory { module: owned() });
    }
    let Some(version) = release.version_of(channel) else {
        let known: Vec<_> = release.spec.channels.iter().flatten().map(|c| c.channel.as_str()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(Fault::NoSuchChannel { module: owned(), channel: channel.to_owned(), known });
    };
    if release.spec.ocm_component_name.is_empty() {
        return Err(Fault::NoComponent { module: owned() });
    }
    let name = ModuleTemplate::object_name(module, version);
    let template = catalog.template(&name).ok_or_else(|| Fault::NoTemplate {
        module: owned(),
        version: version.to_owned(),
        template: name,
    })?;
    Ok(Chosen { version: version.to_owned(), component: release.spec.ocm_component_name.clone(), template })
}

#[cfg(test)]
pub(crate) mod fixtures {
    use std::collections::HashMap;

    use super::*;
    use serde_json::json;

    /// A catalog of two modules: `lighthouse` (regular 1.0.0, fast 1.1.0) and mandatory `guard`.
    #[derive(Default)]
    pub(crate) struct FakeCatalog {
        pub(crate) releases: HashMap<String, Arc<ModuleReleaseMeta>>,
        pub(crate) templates: HashMap<String, Arc<ModuleTemplate>>,
    }

    impl Catalog for FakeCatalog {
        fn release(&self, module: &str) -> Option<Arc<ModuleReleaseMeta>> {
            self.releases.get(module).cloned()
        }
        fn template(&self, name: &str) -> Option<Arc<ModuleTemplate>> {
            self.templates.get(name).cloned()
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
mod tests {
    use super::*;

    fn wanted(kyma_channel: &str, module: &str, channel: Option<&str>) -> KymaSpec {
        let module = Module { name: module.into(), channel: channel.map(Into::into), ..Module::default() };
        KymaSpec { channel: kyma_channel.into(), modules: vec![module], ..KymaSpec::default() }
    }

    fn version(kyma_channel: &str, module: &str, channel: Option<&str>) -> Result<String, Fault> {
        choose(&wanted(kyma_channel, module, channel), &fixtures::catalog())
            .remove(0)
            .outcome
            .map(|chosen| chosen.version)
    }

    #[test]
    fn the_channel_nearest_to_the_module_counts() {
        assert_eq!(version("regular", "lighthouse", None).unwrap(), "1.0.0");
        assert_eq!(version("regular", "lighthouse", Some("fast")).unwrap(), "1.1.0");
        assert_eq!(version("fast", "lighthouse", None).unwrap(), "1.1.0");
        assert_eq!(version("", "lighthouse", None).unwrap(), "1.0.0");
    }

    #[test]
    fn every_fault_names_its_cause() {
        let text = |r: Result<String, Fault>| r.unwrap_err().to_string();
        assert!(text(version("regular", "nothere", None)).contains("no ModuleReleaseMeta of that name"));
        assert!(
            text(version("odd", "lighthouse", None))
                .contains("channel 'odd' (it has: regular, fast, broken)")
        );
        assert!(text(version("none", "lighthouse", None)).contains("'none'"));
        assert!(text(version("broken", "lighthouse", None)).contains("lighthouse-9.9.9"));
        assert!(text(version("regular", "guard", None)).contains("mandatory"));
    }

    #[test]
    fn a_fault_of_an_installed_module_is_a_warning() {
        let fault = version("odd", "lighthouse", None).unwrap_err();
        assert_eq!((fault.state(false), fault.state(true)), (State::Error, State::Warning));
    }
}
