//! From a wish to a version.

use std::sync::Arc;

use tidewatch_api::{ModuleReleaseMeta, ModuleTemplate, names};

use super::{
    Catalog, Chosen, Fault,
    legacy::{self, list},
};

/// What a user asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish<'a> {
    /// The module.
    pub module: &'a str,
    /// The channel that counts for it.
    pub channel: &'a str,
    /// The version it has to be; the channel does not count then.
    pub pin: Option<&'a str>,
}

/// Where a version comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A channel of the release meta.
    Channel,
    /// The user's pin; the status shows no channel then.
    Pin,
    /// A template of the old kind.
    Legacy,
    /// A template that was made in the runtime: a tenant's, so it gets no central credentials and no Secrets.
    Local,
}

/// Resolves one wish: a pinned version, else the channel's in the release meta, else the old kind's template of the
/// channel, else the runtime's own template. Each of the later ones only where KCP has nothing of that name: neither
/// do old templates shadow a release meta, nor the runtime's what KCP has.
///
/// `local` are the runtime's own templates, and only where KCP allows them for this Kyma: the caller leaves them out
/// otherwise.
pub fn resolve(
    wish: Wish<'_>,
    catalog: &dyn Catalog,
    local: &[Arc<ModuleTemplate>],
) -> Result<Chosen, Fault> {
    let wish = Wish { pin: wish.pin.filter(|pin| !pin.is_empty()), ..wish };
    if wish.pin.is_none() && wish.channel == names::CHANNEL_NONE {
        return Err(Fault::ChannelNone { module: wish.module.to_owned() });
    }
    if let Some(release) = catalog.release(wish.module) {
        return released(wish, &release, catalog);
    }
    let central = catalog.templates_of(wish.module);
    let old: Vec<_> = central.iter().filter(|t| legacy::is_old(t)).collect();
    let own: Vec<_> = local
        .iter()
        // What KCP has is never shadowed, be it of the new kind and without its release meta.
        .filter(|t| central.is_empty() && t.module_name() == Some(wish.module))
        .collect();
    legacy::choose(wish, &old, Origin::Legacy)
        .or_else(|| legacy::choose(wish, &own, Origin::Local))
        .unwrap_or_else(|| Err(Fault::UnknownModule { module: wish.module.to_owned() }))
}

fn released(wish: Wish<'_>, release: &ModuleReleaseMeta, catalog: &dyn Catalog) -> Result<Chosen, Fault> {
    let module = || wish.module.to_owned();
    if release.mandatory_version().is_some() {
        return Err(Fault::Mandatory { module: module() });
    }
    let channels = || release.spec.channels.iter().flatten();
    let version = match wish.pin {
        Some(pin) => {
            let listed = release.spec.versions.iter().map(|v| v.version.as_str());
            let offered = || channels().map(|c| c.version.as_str()).chain(listed.clone());
            if !offered().any(|version| version == pin) {
                let known = list(offered().filter(|version| !version.is_empty()));
                return Err(Fault::NotOffered { module: module(), version: pin.to_owned(), known });
            }
            pin
        }
        None => release.version_of(wish.channel).ok_or_else(|| Fault::NoSuchChannel {
            module: module(),
            channel: wish.channel.to_owned(),
            known: list(channels().map(|c| c.channel.as_str())),
        })?,
    };
    let chosen = released_as(wish.module, version, release, catalog)?;
    Ok(Chosen { origin: if wish.pin.is_some() { Origin::Pin } else { Origin::Channel }, ..chosen })
}

/// A version that a release meta names.
pub(in crate::plan) fn released_as(
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
    Ok(Chosen { version: version_name(), component, template, origin: Origin::Channel })
}
