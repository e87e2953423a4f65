//! Resolves requested modules to versions.

use std::sync::Arc;

use tidewatch_api::{ModuleReleaseMeta, ModuleTemplate, names};

use super::{
    Catalog, Chosen, Fault,
    legacy::{self, list},
};

/// A requested module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleRequest<'a> {
    /// Module name.
    pub module: &'a str,
    /// Effective channel.
    pub channel: &'a str,
    /// Pinned version; the channel is then ignored.
    pub pin: Option<&'a str>,
}

/// Origin of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Channel of the release meta.
    Channel,
    /// Pinned by the user; the status shows no channel.
    Pin,
    /// Legacy template.
    Legacy,
    /// Template in the runtime: a tenant's, so it gets no central credentials or Secrets.
    Local,
}

/// Resolves a request by release meta (pinned version or channel), else legacy template, else the runtime's own template.
///
/// A module known to KCP is never shadowed. But a pinned version that KCP lacks may be the runtime's own. Callers pass `local` only if KCP
/// allows own templates for this Kyma.
pub fn resolve(
    request: ModuleRequest<'_>,
    catalog: &dyn Catalog,
    local: &[Arc<ModuleTemplate>],
) -> Result<Chosen, Fault> {
    let request = ModuleRequest { pin: request.pin.filter(|pin| !pin.is_empty()), ..request };
    if request.pin.is_none() && request.channel == names::CHANNEL_NONE {
        return Err(Fault::ChannelNone { module: request.module.to_owned() });
    }
    if let Some(release) = catalog.release(request.module) {
        let own_template = || local_version(request, &release, local);
        return released(request, &release, catalog).or_else(|fault| own_template().ok_or(fault));
    }
    let central = catalog.templates_of(request.module);
    let old: Vec<_> = central.iter().filter(|t| legacy::is_legacy(t)).collect();
    let own: Vec<_> = local
        .iter()
        // KCP's templates are never shadowed, even without a release meta.
        .filter(|t| central.is_empty() && t.module_name() == Some(request.module))
        .collect();
    legacy::choose(request, &old, Origin::Legacy)
        .or_else(|| legacy::choose(request, &own, Origin::Local))
        .unwrap_or_else(|| Err(Fault::UnknownModule { module: request.module.to_owned() }))
}

/// Pinned version that the release lacks; `None` for mandatory modules.
pub fn unreleased_pin<'a>(pin: Option<&'a str>, release: &ModuleReleaseMeta) -> Option<&'a str> {
    let pin = pin.filter(|pin| !pin.is_empty() && release.mandatory_version().is_none())?;
    (!offered(release).any(|version| version == pin)).then_some(pin)
}

fn local_version(
    request: ModuleRequest<'_>,
    release: &ModuleReleaseMeta,
    local: &[Arc<ModuleTemplate>],
) -> Option<Chosen> {
    let pin = unreleased_pin(request.pin, release)?;
    let is =
        |t: &&Arc<ModuleTemplate>| t.module_name() == Some(request.module) && legacy::version(t) == Some(pin);
    legacy::choose(request, &local.iter().filter(is).collect::<Vec<_>>(), Origin::Local)?.ok()
}

fn offered(release: &ModuleReleaseMeta) -> impl Iterator<Item = &str> + Clone {
    let channels = release.spec.channels.iter().flatten().map(|c| c.version.as_str());
    channels.chain(release.spec.versions.iter().map(|v| v.version.as_str()))
}

fn released(
    request: ModuleRequest<'_>,
    release: &ModuleReleaseMeta,
    catalog: &dyn Catalog,
) -> Result<Chosen, Fault> {
    let module = || request.module.to_owned();
    if release.mandatory_version().is_some() {
        return Err(Fault::Mandatory { module: module() });
    }
    let channels = || release.spec.channels.iter().flatten();
    let version = match request.pin {
        Some(pin) => {
            if !offered(release).any(|version| version == pin) {
                let available = list(offered(release).filter(|version| !version.is_empty()));
                return Err(Fault::NotOffered { module: module(), version: pin.to_owned(), available });
            }
            pin
        }
        None => release.version_of(request.channel).ok_or_else(|| Fault::NoSuchChannel {
            module: module(),
            channel: request.channel.to_owned(),
            available: list(channels().map(|c| c.channel.as_str())),
        })?,
    };
    let chosen = released_as(request.module, version, release, catalog)?;
    Ok(Chosen { origin: if request.pin.is_some() { Origin::Pin } else { Origin::Channel }, ..chosen })
}

/// Resolves a version named by a release meta.
pub fn released_as(
    module: &str,
    version: &str,
    release: &ModuleReleaseMeta,
    catalog: &dyn Catalog,
) -> Result<Chosen, Fault> {
    let (module_name, version_name) = (|| module.to_owned(), || version.to_owned());
    if release.spec.ocm_component_name.is_empty() {
        return Err(Fault::NoComponent { module: module_name() });
    }
    let name = ModuleTemplate::object_name(module, version);
    let template = catalog.template(&name).ok_or_else(|| Fault::NoTemplate {
        module: module_name(),
        version: version_name(),
        template: name,
    })?;
    let component = release.spec.ocm_component_name.clone();
    let registry = legacy::registry(&template);
    Ok(Chosen { version: version_name(), component, registry, template, origin: Origin::Channel })
}
