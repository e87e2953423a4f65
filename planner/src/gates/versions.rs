//! Allowed replacements of the installed version, and deprecation.

use jiff::Timestamp;
use tidewatch_api::{ModuleReleaseMeta, State};

use super::{GateDecision, Notes, View};
use crate::{
    notice::{About, Notice},
    versions::{Fault, Listed, Origin, Phase, deprecation, may_replace},
};

/// Refusals are also sent as an Event: the module stays unchanged, but its user may expect the other version.
pub(super) fn judge(view: &View<'_>, notes: &mut Notes) -> GateDecision {
    let Some(fault) = refusal(view) else { return GateDecision::Pass };
    let message = fault.to_string();
    notes.notices.push(Notice::warning(
        About::RuntimeKyma,
        "VersionRefused",
        format!("module '{}': {message}", view.module.entry.name),
    ));
    GateDecision::Keep { state: fault.state(true), message, maintenance: false, retry_at: None }
}

/// Reason why the chosen version cannot replace the installed one.
pub(super) fn refusal(view: &View<'_>) -> Option<Fault> {
    let chosen = view.module.outcome.as_ref().ok()?;
    let release = view.module.release.as_deref();
    // Objects being deleted are not compared. A runtime's own version must not block KCP's.
    let other = view.installed.filter(|manifest| manifest.spec.version != chosen.version);
    let installed = other.filter(|manifest| {
        let own = manifest.is_of_runtime_template() && chosen.origin != Origin::Local;
        manifest.metadata.deletion_timestamp.is_none() && !own
    });
    let installed = installed.map(|manifest| manifest.spec.version.as_str());
    let allowed = release.is_some_and(|release| release.spec.allow_downgrade == Some(true));
    may_replace(installed, &chosen.version, allowed).err()
}

/// Remarks on fields without effect, and on deprecation of the version in use.
pub(super) fn add_remarks(view: &View<'_>, verdict: &GateDecision, notes: &mut Notes) {
    let stays = view.installed.filter(|manifest| manifest.metadata.deletion_timestamp.is_none());
    let kept = stays.map(|manifest| manifest.spec.version.as_str());
    let chosen = view.module.outcome.as_ref().ok().map(|chosen| chosen.version.as_str());
    let in_use = match verdict {
        // Without a chosen version, the installed one stays.
        GateDecision::Pass => chosen.or(kept),
        GateDecision::Keep { .. } => kept.or(chosen),
        GateDecision::Remove { .. } | GateDecision::Refuse { .. } | GateDecision::Unmanage { .. } => return,
    };
    let module = &view.module.entry;
    if let (Some(_), Some(channel)) = (&module.version, &module.channel) {
        notes.remark(State::Ready, format!("the channel '{channel}' has no effect beside a version"));
    }
    if !module.remote_module_template_ref.is_empty() {
        notes.remark(State::Ready, "remoteModuleTemplateRef has no effect".to_owned());
    }
    if !module.controller.is_empty() {
        notes.remark(State::Ready, "controller has no effect".to_owned());
    }
    if let Some((release, version)) = view.module.release.as_deref().zip(in_use) {
        remark_deprecation(release, version, view, notes);
    }
}

fn remark_deprecation(release: &ModuleReleaseMeta, version: &str, view: &View<'_>, notes: &mut Notes) {
    let Some(offered) = release.offered(version) else { return };
    let date = offered.deprecation_date.as_ref().map(|date| date_of(date.0));
    let listed = Listed {
        version,
        deprecation_date: date.as_deref(),
        deprecation_message: Some(&offered.deprecation_message),
    };
    let Some(end) = deprecation(&[listed], version, view.now) else { return };
    if let Some(next) = end.next {
        notes.recheck(next);
    }
    if end.phase >= Phase::Near {
        notes.notices.push(Notice::warning(
            About::RuntimeKyma,
            "VersionDeprecated",
            format!("module '{}': {}", view.module.entry.name, end.message),
        ));
    }
    let state = if end.phase == Phase::Ended { State::Warning } else { State::Ready };
    notes.remark(state, end.message);
}

/// Midnight is shown as a date.
fn date_of(moment: Timestamp) -> String {
    let text = moment.to_string();
    text.strip_suffix("T00:00:00Z").map(str::to_owned).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tidewatch_api::{Kyma, KymaSpec, Manifest};

    use super::*;
    use crate::{
        gates::Facts,
        versions::{
            Catalog, choose,
            fixtures::{FakeCatalog, catalog},
        },
    };

    fn catalog_with(release: &Value) -> FakeCatalog {
        let mut catalog = catalog();
        let mut meta = serde_json::to_value(catalog.release("lighthouse").unwrap().as_ref()).unwrap();
        meta["spec"].as_object_mut().unwrap().extend(release.as_object().unwrap().clone());
        let meta = std::sync::Arc::new(serde_json::from_value(meta).unwrap());
        catalog.releases.insert("lighthouse".into(), meta);
        catalog
    }

    fn judged(release: &Value, installed: Option<&Value>, now: &str) -> (GateDecision, Notes) {
        with_entry(&json!({}), release, installed, now)
    }

    fn with_entry(
        entry: &Value,
        release: &Value,
        installed: Option<&Value>,
        now: &str,
    ) -> (GateDecision, Notes) {
        let catalog = catalog_with(release);
        let mut named = json!({"name": "lighthouse"});
        named.as_object_mut().unwrap().extend(entry.as_object().unwrap().clone());
        let wanted = KymaSpec {
            channel: "regular".into(),
            modules: vec![serde_json::from_value(named).unwrap()],
            ..KymaSpec::default()
        };
        let listed_modules = choose(&wanted, &catalog, &[]);
        let manifest = installed.map(|value| serde_json::from_value::<Manifest>(value.clone()).unwrap());
        let mut notes = Notes::default();
        let view = View {
            module: &listed_modules[0],
            installed: manifest.as_ref(),
            kyma: &Kyma::default(),
            wanted: &wanted,
            facts: &Facts::default(),
            now: now.parse().unwrap(),
        };
        let gate = judge(&view, &mut notes);
        add_remarks(&view, &gate, &mut notes);
        (gate, notes)
    }

    fn manifest(version: &str) -> Value {
        json!({"metadata": {"name": "m"}, "spec": {"version": version, "remote": false,
               "install": {"name": "raw-manifest", "source": {}}}})
    }

    const NOW: &str = "2026-06-01T00:00:00Z";

    #[test]
    fn a_downgrade_is_refused_unless_allowed_by_the_release() {
        let (gate, notes) = judged(&json!({}), Some(&manifest("1.2.0")), NOW);
        let reported = &notes.notices[0];
        assert_eq!(
            (notes.notices.len(), reported.reason, reported.kind),
            (1, "VersionRefused", crate::notice::Kind::Warning)
        );
        assert!(
            reported.message.starts_with("module 'lighthouse': version 1.0.0 is lower"),
            "{}",
            reported.message
        );
        let GateDecision::Keep { state: State::Warning, message, retry_at: None, .. } = gate else {
            panic!("{gate:?}")
        };
        assert!(message.contains("1.0.0 is lower than the installed 1.2.0"), "{message}");
        assert_eq!(
            judged(&json!({"allowDowngrade": true}), Some(&manifest("1.2.0")), NOW).0,
            GateDecision::Pass
        );
        assert_eq!(judged(&json!({}), Some(&manifest("0.9.0")), NOW).0, GateDecision::Pass);
        assert_eq!(judged(&json!({}), None, NOW).0, GateDecision::Pass);
        let mut deleting = manifest("1.2.0");
        deleting["metadata"]["deletionTimestamp"] = NOW.into();
        assert_eq!(
            judged(&json!({}), Some(&deleting), NOW).0,
            GateDecision::Pass,
            "the way out of a refusal"
        );
        let mut own = manifest("1.2.0");
        own["metadata"]["annotations"] = json!({tidewatch_api::names::annotations::RUNTIME_TEMPLATE: "true"});
        assert_eq!(
            judged(&json!({}), Some(&own), NOW).0,
            GateDecision::Pass,
            "what a runtime has shadows nothing"
        );
    }

    #[test]
    fn a_deprecation_is_reported_and_rechecked_at_each_phase() {
        let ends = json!({"versions": [{"version": "1.0.0", "deprecationDate": "2026-12-31T00:00:00Z",
            "deprecationMessage": "go to 1.1"}]});
        let text = "version 1.0.0 is deprecated and ends on 2026-12-31: go to 1.1";
        let at = |now| judged(&ends, Some(&manifest("1.0.0")), now).1;
        let early = at(NOW);
        assert_eq!(early.recheck_at, Some("2026-12-01T00:00:00Z".parse().unwrap()));
        assert_eq!((early.notices.len(), early.remark), (0, Some((State::Ready, text.to_owned()))));
        let near = at("2026-12-05T00:00:00Z");
        assert_eq!(near.recheck_at, Some("2026-12-31T00:00:00Z".parse().unwrap()));
        assert_eq!(near.remark, Some((State::Ready, text.to_owned())));
        assert_eq!(near.notices[0].message, format!("module 'lighthouse': {text}"));
        assert_eq!(near.notices[0].about, About::RuntimeKyma);
        let ended = at("2027-01-01T00:00:00Z");
        let over = "version 1.0.0 is deprecated and has ended on 2026-12-31: go to 1.1";
        assert_eq!(ended.remark, Some((State::Warning, over.to_owned())));
        assert_eq!((ended.recheck_at, ended.notices.len()), (None, 1));
        let mut both = Notes::default();
        both.remark(State::Ready, "set by the platform's policy: channel regular".into());
        both.remark(State::Warning, over.into());
        let remark_of = format!("set by the platform's policy: channel regular; {over}");
        assert_eq!(both.remark, Some((State::Warning, remark_of)), "neither hides the other");
        let other = judged(&ends, Some(&manifest("1.1.0")), NOW).1;
        assert_eq!(other.remark, None, "it stays on 1.1.0, of which nothing is said");
        let nowhere = json!({"channel": "gone"});
        let stays = |installed: Option<&Value>| with_entry(&nowhere, &ends, installed, NOW).1;
        assert_eq!(stays(Some(&manifest("1.0.0"))).remark, Some((State::Ready, text.to_owned())));
        assert_eq!(stays(None), Notes::default());
    }

    #[test]
    fn the_deprecation_of_a_kept_version_is_reported() {
        let ends = json!({"versions": [{"version": "0.9.0", "deprecationDate": "2026-12-31T00:00:00Z", "deprecationMessage": "go on"}]});
        let catalog = catalog_with(&ends);
        let wanted: KymaSpec =
            serde_json::from_value(json!({"channel": "regular", "modules": [{"name": "lighthouse"}]}))
                .unwrap();
        let listed_modules = choose(&wanted, &catalog, &[]);
        let installed = serde_json::from_value::<Manifest>(manifest("0.9.0")).unwrap();
        let view = View {
            module: &listed_modules[0],
            installed: Some(&installed),
            kyma: &Kyma::default(),
            wanted: &wanted,
            facts: &Facts::default(),
            now: NOW.parse().unwrap(),
        };
        let reported = |verdict: GateDecision| {
            let mut notes = Notes::default();
            add_remarks(&view, &verdict, &mut notes);
            notes.remark.map(|(_, text)| text)
        };
        let waits = GateDecision::Keep {
            state: State::Ready,
            message: "for a window".into(),
            maintenance: true,
            retry_at: None,
        };
        assert_eq!(
            reported(waits).as_deref(),
            Some("version 0.9.0 is deprecated and ends on 2026-12-31: go on")
        );
        assert_eq!(reported(GateDecision::Pass), None, "1.0.0 takes its place");
        assert_eq!(reported(GateDecision::Remove { message: "forbidden".into() }), None);
    }

    #[test]
    fn ineffective_module_fields_are_reported() {
        let remark_of = |entry: &Value| with_entry(entry, &json!({}), None, NOW).1.remark;
        assert_eq!(remark_of(&json!({"version": "1.0.0"})), None);
        assert_eq!(remark_of(&json!({"channel": "fast"})), None);
        let combined = remark_of(&json!({"version": "1.0.0", "channel": "fast"}));
        assert_eq!(
            combined,
            Some((State::Ready, "the channel 'fast' has no effect beside a version".to_owned()))
        );
        let by_ref = remark_of(&json!({"remoteModuleTemplateRef": "other/template"}));
        assert_eq!(by_ref, Some((State::Ready, "remoteModuleTemplateRef has no effect".to_owned())));
    }
}
