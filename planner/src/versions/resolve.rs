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
/// do old templates shadow a release meta, nor the runtime's what KCP has. A further version of a module that KCP has
/// a release meta of can be the runtime's own, too: if it is asked for by its number, and KCP does not offer it.
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
        let further = || chosen_further(wish, &release, local);
        return released(wish, &release, catalog).or_else(|fault| further().ok_or(fault));
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

/// The version that is asked for of a module that KCP has without it; `None` if there is none, or KCP has more to say than that.
pub fn further<'a>(pin: Option<&'a str>, release: &ModuleReleaseMeta) -> Option<&'a str> {
    let pin = pin.filter(|pin| !pin.is_empty() && release.mandatory_version().is_none())?;
    (!offered(release).any(|version| version == pin)).then_some(pin)
}

fn chosen_further(
    wish: Wish<'_>,
    release: &ModuleReleaseMeta,
    local: &[Arc<ModuleTemplate>],
) -> Option<Chosen> {
    let pin = further(wish.pin, release)?;
    let is =
        |t: &&Arc<ModuleTemplate>| t.module_name() == Some(wish.module) && legacy::version(t) == Some(pin);
    legacy::choose(wish, &local.iter().filter(is).collect::<Vec<_>>(), Origin::Local)?.ok()
}

/// The versions of a release: those of its channels, and those without one.
fn offered(release: &ModuleReleaseMeta) -> impl Iterator<Item = &str> + Clone {
    let channels = release.spec.channels.iter().flatten().map(|c| c.version.as_str());
    channels.chain(release.spec.versions.iter().map(|v| v.version.as_str()))
}

fn released(wish: Wish<'_>, release: &ModuleReleaseMeta, catalog: &dyn Catalog) -> Result<Chosen, Fault> {
    let module = || wish.module.to_owned();
    if release.mandatory_version().is_some() {
        return Err(Fault::Mandatory { module: module() });
    }
    let channels = || release.spec.channels.iter().flatten();
    let version = match wish.pin {
        Some(pin) => {
            if !offered(release).any(|version| version == pin) {
                let known = list(offered(release).filter(|version| !version.is_empty()));
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
