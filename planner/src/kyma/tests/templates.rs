//! Templates that change or are recreated after installation.

use super::*;

fn run_on(status: KymaStatus, wanted: &KymaSpec, manifest: Manifest, catalog: &FakeCatalog) -> Plan {
    let kyma = Kyma { status: Some(status), ..kyma() };
    let (listed_modules, sources) = (choose(wanted, catalog, &[]), sources());
    let (facts, now) = (Facts::default(), Timestamp::UNIX_EPOCH);
    let manifests = [manifest];
    plan(&Input {
        kyma: &kyma,
        wanted,
        modules: &listed_modules,
        sources: &sources,
        manifests: &manifests,
        facts,
        now,
    })
}

#[test]
fn a_changed_template_does_not_reinstall_its_version() {
    let requested = wanted(&["lighthouse"]);
    let before = run(&requested, &[installed(State::Ready)]).status;
    let mut catalog = catalog();
    let mut template = catalog.templates["lighthouse-1.0.0"].as_ref().clone();
    template.metadata.generation = Some(2);
    catalog.put(Arc::new(template.clone()));
    let links = run_on(before.clone(), &requested, installed(State::Ready), &catalog);
    assert_eq!((links.notices.len(), links.apply.len()), (0, 0), "nothing that is installed has changed");
    let generation =
        |plan: &Plan| plan.status.modules[0].template.clone().unwrap().metadata.unwrap().generation;
    assert_eq!(generation(&links), Some(2));

    template.spec.data.as_mut().unwrap().0["spec"] = json!({"height": 1});
    template.spec.progress_deadline_seconds = Some(7);
    catalog.put(Arc::new(template));
    let kept_manifest = run_on(before.clone(), &requested, installed(State::Ready), &catalog);
    assert_eq!(kept_manifest.apply, []);
    assert_eq!(
        (kept_manifest.notices[0].reason, kept_manifest.notices[0].kind),
        ("ModuleTemplateChanged", Kind::Warning)
    );
    assert_eq!(
        (generation(&kept_manifest), kept_manifest.status.modules[0].state),
        (Some(1), State::Ready),
        "and again next time"
    );

    let fast = KymaSpec { channel: "fast".into(), ..requested.clone() };
    let upgraded = run_on(before, &fast, installed(State::Ready), &catalog);
    assert_eq!((upgraded.apply[0].spec.version.as_str(), upgraded.notices.len()), ("1.1.0", 0));
}

#[test]
fn a_recreated_template_does_not_reinstall_its_version() {
    let requested = wanted(&["lighthouse"]);
    let mut catalog = catalog();
    let mut template = catalog.templates["lighthouse-1.0.0"].as_ref().clone();
    let put = |catalog: &mut FakeCatalog, template: &tidewatch_api::ModuleTemplate| {
        catalog.put(Arc::new(template.clone()));
    };
    template.metadata.uid = Some("first".into());
    put(&mut catalog, &template);
    let before = run(&requested, &[installed(State::Ready)]).status;
    let mut available = installed(State::Ready);
    available.annotations_mut().insert(annotations::TEMPLATE_UID.into(), "first".into());
    let run = |manifest: &Manifest, catalog: &FakeCatalog| {
        run_on(before.clone(), &requested, manifest.clone(), catalog)
    };
    assert_eq!(run(&installed(State::Ready), &catalog).apply, [], "nobody is written to only to remember it");
    assert_eq!(run(&available, &catalog).apply, []);

    // Generation 1 again, and equal content.
    template.metadata.uid = Some("second".into());
    put(&mut catalog, &template);
    let same = run(&available, &catalog);
    assert_eq!((same.apply.len(), same.notices.len()), (0, 0));

    template.spec.data.as_mut().unwrap().0["spec"] = json!({"height": 1});
    put(&mut catalog, &template);
    let kept_manifest = run(&available, &catalog);
    assert_eq!((kept_manifest.apply.len(), kept_manifest.notices[0].reason), (0, "ModuleTemplateChanged"));
    assert_eq!(kept_manifest.status.modules[0].state, State::Ready);
    // Other changes are written; the uid stays.
    available.labels_mut().insert(labels::MODULE_NAME.into(), "lighthouse".into());
    available.labels_mut().insert(labels::CHANNEL.into(), "old".into());
    let moved = run(&available, &catalog);
    assert_eq!(moved.apply[0].spec.resource, available.spec.resource);
    assert_eq!(moved.apply[0].annotations()[annotations::TEMPLATE_UID], "first");
}

#[test]
fn a_kcp_release_replaces_an_equal_runtime_template() {
    let requested = wanted(&["lighthouse"]);
    let mut catalog = catalog();
    let mut template = catalog.templates["lighthouse-1.0.0"].as_ref().clone();
    template.metadata.uid = Some("kcps".into());
    catalog.put(Arc::new(template));
    let before = run(&requested, &[installed(State::Ready)]).status;
    let mut own = installed(State::Ready);
    own.spec.resource.as_mut().unwrap().0["spec"] = json!({"height": 1});
    own.spec.resource.as_mut().unwrap().0["metadata"]["name"] = "mine".into();
    own.annotations_mut().extend([
        (annotations::TEMPLATE_UID.to_owned(), "tenants".to_owned()),
        (annotations::RUNTIME_TEMPLATE.to_owned(), "true".to_owned()),
        (annotations::MODULE_TERMS.to_owned(), r#"{"progressDeadlineSeconds":7}"#.to_owned()),
    ]);
    let plan = run_on(before, &requested, own, &catalog);
    let central = &plan.apply[0];
    assert_eq!(plan.notices, []);
    assert!(!central.is_of_runtime_template());
    assert_eq!(central.spec.resource, installed(State::Ready).spec.resource, "what KCP's template names");
    assert_eq!(central.annotations().get(annotations::MODULE_TERMS), None);
    assert_eq!(central.annotations()[annotations::TEMPLATE_UID], "kcps");
}
