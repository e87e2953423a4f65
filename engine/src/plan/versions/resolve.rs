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

/// A version that a release meta lists outside of its channels, or says more about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listed<'a> {
    /// The version.
    pub version: &'a str,
    /// Until when it may be used: a date, or a time with an offset.
    pub deprecation_date: Option<&'a str>,
    /// For its users: why, and what to do.
    pub deprecation_message: Option<&'a str>,
}

/// What there is to choose from.
#[derive(Clone, Copy)]
pub struct Offer<'a> {
    /// KCP's release metas and templates by name.
    pub catalog: &'a dyn Catalog,
    /// The versions that this module's release meta lists besides its channels.
    pub versions: &'a [Listed<'a>],
    /// KCP's templates, of which those of this module count, where it has no release meta.
    pub legacy: &'a [Arc<ModuleTemplate>],
    /// The runtime's own templates. Only where KCP allows them for this Kyma: the caller leaves them out otherwise.
    pub local: &'a [Arc<ModuleTemplate>],
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
pub fn resolve(wish: Wish<'_>, offer: &Offer<'_>) -> Result<(Chosen, Origin), Fault> {
    let wish = Wish { pin: wish.pin.filter(|pin| !pin.is_empty()), ..wish };
    if wish.pin.is_none() && wish.channel == names::CHANNEL_NONE {
        return Err(Fault::ChannelNone { module: wish.module.to_owned() });
    }
    if let Some(release) = offer.catalog.release(wish.module) {
        let origin = if wish.pin.is_some() { Origin::Pin } else { Origin::Channel };
        return Ok((released(wish, &release, offer)?, origin));
    }
    for (templates, origin) in [(offer.legacy, Origin::Legacy), (offer.local, Origin::Local)] {
        let own: Vec<_> = templates.iter().filter(|t| t.module_name() == Some(wish.module)).collect();
        if let Some(outcome) = legacy::choose(wish, &own) {
            return Ok((outcome?, origin));
        }
    }
    Err(Fault::UnknownModule { module: wish.module.to_owned() })
}

fn released(wish: Wish<'_>, release: &ModuleReleaseMeta, offer: &Offer<'_>) -> Result<Chosen, Fault> {
    let module = || wish.module.to_owned();
    if release.mandatory_version().is_some() {
        return Err(Fault::Mandatory { module: module() });
    }
    let channels = || release.spec.channels.iter().flatten();
    let version = match wish.pin {
        Some(pin) => {
            let offered =
                || channels().map(|c| c.version.as_str()).chain(offer.versions.iter().map(|v| v.version));
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
    if release.spec.ocm_component_name.is_empty() {
        return Err(Fault::NoComponent { module: module() });
    }
    let name = ModuleTemplate::object_name(wish.module, version);
    let template = offer.catalog.template(&name).ok_or_else(|| Fault::NoTemplate {
        module: module(),
        version: version.to_owned(),
        template: name,
    })?;
    Ok(Chosen { version: version.to_owned(), component: release.spec.ocm_component_name.clone(), template })
}
