//! Legacy templates: one per channel, without a release meta.

use std::sync::Arc;

use kube::ResourceExt;
use tidewatch_api::ModuleTemplate;

use super::{
    Chosen, Fault,
    resolve::{ModuleRequest, Origin},
};

/// Returns whether a template is legacy; others need a release meta.
pub fn is_legacy(template: &ModuleTemplate) -> bool {
    !template.spec.channel.is_empty() || template.spec.mandatory == Some(true)
}

/// Picks from one module's templates; a pin ignores channels.
pub(super) fn choose(
    request: ModuleRequest<'_>,
    templates: &[&Arc<ModuleTemplate>],
    origin: Origin,
) -> Option<Result<Chosen, Fault>> {
    if templates.is_empty() {
        return None;
    }
    let (module, channel) = (request.module.to_owned(), request.channel.to_owned());
    if templates.iter().any(|t| t.spec.mandatory == Some(true)) {
        return Some(Err(Fault::Mandatory { module }));
    }
    let fits = |t: &ModuleTemplate| match request.pin {
        Some(pin) => version(t) == Some(pin),
        None => t.spec.channel == request.channel,
    };
    let mut fitting: Vec<_> = templates.iter().filter(|t| fits(t)).collect();
    fitting.sort_by_key(|t| t.name_any());
    Some(match (fitting.as_slice(), request.pin) {
        // Channels may share a version.
        ([one], _) | ([one, ..], Some(_)) => chosen(one, origin),
        ([], Some(pin)) => {
            let available = sorted(templates.iter().filter_map(|t| version(t)));
            Err(Fault::NotOffered { module, version: pin.to_owned(), available })
        }
        ([], None) => {
            let available =
                sorted(templates.iter().map(|t| t.spec.channel.as_str()).filter(|c| !c.is_empty()));
            Err(Fault::NoSuchChannel { module, channel, available })
        }
        (several, None) => {
            let names: Vec<_> = several.iter().map(|t| t.name_any()).collect();
            Err(Fault::Ambiguous { module, channel, templates: sorted(names.iter().map(String::as_str)) })
        }
    })
}

/// Highest version of mandatory templates; invalid ones are lowest.
pub fn highest(templates: &[Arc<ModuleTemplate>]) -> Option<Result<Chosen, Fault>> {
    let order = |t: &Arc<ModuleTemplate>| {
        let version = version(t).map(|v| v.strip_prefix('v').unwrap_or(v));
        (version.and_then(|v| semver::Version::parse(v).ok()), t.name_any())
    };
    templates.iter().max_by_key(|t| order(t)).map(|template| chosen(template, Origin::Legacy))
}

fn chosen(template: &Arc<ModuleTemplate>, origin: Origin) -> Result<Chosen, Fault> {
    match (version(template), component(template, "name")) {
        (Some(version), Some(component)) => Ok(Chosen {
            version: version.to_owned(),
            component: component.to_owned(),
            registry: registry(template),
            template: Arc::clone(template),
            origin,
        }),
        _ => Err(Fault::NoDescriptor { template: template.name_any() }),
    }
}

/// Template's version, else the descriptor's.
pub(super) fn version(template: &ModuleTemplate) -> Option<&str> {
    Some(template.spec.version.as_str()).filter(|v| !v.is_empty()).or_else(|| component(template, "version"))
}

pub(super) fn component<'a>(template: &'a ModuleTemplate, field: &str) -> Option<&'a str> {
    template.spec.descriptor.0.get("component")?.get(field)?.as_str().filter(|text| !text.is_empty())
}

/// Bytes.
const MAX_REGISTRY: usize = 512;

/// Registry `HOST[:PORT][/PATH]` of the descriptor: the last repository context is current (Open Component Model, descriptor v2).
pub fn registry(template: &ModuleTemplate) -> Option<String> {
    let contexts = template.spec.descriptor.0.get("component")?.get("repositoryContexts")?.as_array()?;
    let text = |field: &str| contexts.last()?.get(field)?.as_str();
    let base = text("baseUrl")?;
    let host = base.strip_prefix("https://").or_else(|| base.strip_prefix("http://")).unwrap_or(base);
    let parts = [host, text("subPath").unwrap_or_default()].map(|part| part.trim_matches('/'));
    let whole = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/");
    let good = |whole: &str| {
        (1..=MAX_REGISTRY).contains(&whole.len()) && whole.bytes().all(|b| b.is_ascii_graphic())
    };
    Some(whole).filter(|whole| good(whole))
}

fn sorted<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    list(names.into_iter())
}

/// At most ten unique names.
pub(super) fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut shown: Vec<&str> = Vec::new();
    for name in names {
        if shown.len() == 10 && !shown.contains(&name) {
            return format!("{} and more", shown.join(", "));
        }
        if !shown.contains(&name) {
            shown.push(name);
        }
    }
    if shown.is_empty() { "none".to_owned() } else { shown.join(", ") }
}
