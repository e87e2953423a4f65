use super::*;

fn context(rollout: Duration) -> Context {
    let (ready, _) = watch::channel(0);
    Context { state: Arc::default(), queue: Queue::new(2), ready, rollout }
}

fn asked_of(kyma: &str, change: Change) -> Vec<Asked> {
    asked("lighthouse", &"uid/2".into(), vec![(WorkKey::Kyma { kyma: kyma.into() }, change)])
}

fn waiting(context: &Context) -> (usize, bool) {
    context.queue.inspect(|q| (q.ready().map(|(_, n)| n).sum(), q.next_due().is_some()))
}

#[test]
fn distinguishes_forbidden_watches_from_broken_ones() {
    let status = |code| {
        let status = serde_json::json!({"kind": "Status", "status": "Failure", "message": "watchers is forbidden", "code": code});
        serde_json::from_value::<kube::core::Status>(status).unwrap()
    };
    let list = |code| watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status(code))));
    assert_eq!(forbidden(&list(403)), Some("watchers is forbidden"));
    assert_eq!(forbidden(&watcher::Error::WatchError(Box::new(status(403)))), Some("watchers is forbidden"));
    assert_eq!(forbidden(&list(410)), None);
    assert_eq!(forbidden(&watcher::Error::NoResourceVersion), None);
}

#[tokio::test(start_paused = true)]
async fn releases_wait_for_the_rollout_turn_edits_do_not() {
    let context = context(Duration::from_mins(5));
    context.push("ModuleReleaseMeta", &mut asked_of("a", Change::ModuleRelease), false);
    assert_eq!(waiting(&context), (0, true));
    context.push("Kyma", &mut asked_of("a", Change::Changed), false);
    let edit = context.queue.next().await;
    assert_eq!((edit.class, context.queue.now()), (Class::UserEdit, Duration::ZERO));
    edit.end(crate::queue::Ended::Done);
    let turn = rollout::delay("a", "uid/2", Duration::from_mins(5));
    let lease = context.queue.next().await;
    assert_eq!(lease.class, Class::Rollout);
    assert!(context.queue.now().abs_diff(turn) <= Duration::from_millis(1), "{:?}", context.queue.now());
}

#[tokio::test(start_paused = true)]
async fn changes_affecting_many_kymas_are_spread() {
    for kind in ["ModuleTemplate", "ModuleReleaseMeta", "ConfigMap", PULL_SECRET] {
        let context = context(Duration::from_mins(5));
        context.push(kind, &mut asked_of("a", Change::Changed), false);
        assert_eq!(waiting(&context), (0, true), "{kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_module_secret_queues_its_manifests_at_once() {
    let context = context(Duration::from_mins(5));
    context.push(MODULE_SECRET, &mut asked_of("a", Change::ModuleSecret), false);
    let lease = context.queue.next().await;
    assert_eq!((lease.class, context.queue.now()), (Class::Rollout, Duration::ZERO));
}

#[tokio::test]
async fn objects_of_a_broken_list_do_not_stay() {
    let context = Arc::new(context(Duration::ZERO));
    let manifest: Manifest = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "m", "labels": {"operator.kyma-project.io/kyma-name": "a"}}, "spec": {}}))
    .unwrap();
    let seen = Seen { name: "m".to_owned(), object: Ok(manifest), change: "uid/1".into() };
    let events = [
        watcher::Event::Init,
        watcher::Event::InitApply(seen),
        // The next page failed, so the list restarts.
        watcher::Event::Init,
        watcher::Event::InitDone,
    ];
    let events = futures::stream::iter(events.map(Ok)).boxed();
    let remove = KcpState::delete_manifest;
    let others = Some((|state, names| state.manifests.names_besides(names)) as Others);
    run(Arc::clone(&context), "Manifest".to_owned(), events, |s, _, o| s.apply_manifest(o), remove, others)
        .await;
    assert!(context.state.read().manifests.list("a").is_empty());
}

#[test]
fn a_complete_list_finds_deleted_objects() {
    let manifest = |name: &str| -> Manifest {
        serde_json::from_value(serde_json::json!({"metadata": {"name": name}, "spec": {}})).unwrap()
    };
    for others in [None, Some((|state, names| state.manifests.names_besides(names)) as Others)] {
        let (mut known, mut state) = (Known::new(others), KcpState::default());
        let list = |known: &mut Known, state: &mut KcpState, names: &[&str]| {
            known.list_begins();
            for name in names {
                known.listed(name);
                state.apply_manifest(manifest(name));
            }
        };
        list(&mut known, &mut state, &["broken", "off"]);
        list(&mut known, &mut state, &["a", "b"]);
        let mut gone = known.list_ends(&state);
        gone.sort();
        assert_eq!(gone, ["broken", "off"]);
        for name in gone {
            state.delete_manifest(&name);
        }
        for name in ["c", "d"] {
            known.shown(name);
            state.apply_manifest(manifest(name));
        }
        known.gone("d");
        state.delete_manifest("d");
        list(&mut known, &mut state, &["b"]);
        assert!(!known.is_list_empty());
        let mut gone = known.list_ends(&state);
        gone.sort();
        assert_eq!(gone, ["a", "c"]);
        known.list_begins();
        assert!(known.is_list_empty(), "each list stands for itself");
    }
}

#[test]
fn each_version_of_the_policy_has_its_own_turns() {
    let map = |version: &str| ConfigMap {
        metadata: ObjectMeta {
            uid: Some("u".into()),
            resource_version: Some(version.into()),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    };
    assert_ne!(change_of(&map("1")), change_of(&map("2")));
}

#[tokio::test(start_paused = true)]
async fn without_a_window_or_at_start_nothing_is_delayed() {
    let at_once = context(Duration::ZERO);
    at_once.push("ModuleReleaseMeta", &mut asked_of("a", Change::ModuleRelease), false);
    assert_eq!(waiting(&at_once), (1, false));
    let started = context(Duration::from_mins(5));
    started.push("ModuleReleaseMeta", &mut asked_of("a", Change::ModuleRelease), true);
    started.push("Watcher", &mut asked_of("b", Change::WatcherChanged), false);
    assert_eq!(waiting(&started), (2, false));
}
