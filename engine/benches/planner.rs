//! What a plan costs. The yardstick is a JSON round trip of the same input in the same run: a reconcile
//! has to read and write these objects anyway, so planning that costs less is not what it waits for.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot make its input has nothing to measure")]

use std::{
    collections::{BTreeMap, HashMap},
    hint::black_box,
    sync::Arc,
    time::Duration,
};

use criterion::{BatchSize, Criterion};
use jiff::Timestamp;
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, KymaSpec, Manifest, Module, ModuleReleaseMeta, ModuleTemplate, SourceType,
    object::{Gvk, ObjectRef},
    readiness::Readiness,
};
use tidewatch_deployer::{
    bundle::{Scope, bundle},
    prune::prune,
};
use tidewatch_planner::{
    gates::Facts,
    kyma::{ComponentVersion, Input, Source, Sources, plan},
    manifest_status::{Progress, manifest_status},
    versions::{Catalog, ResolvedModule, choose},
};

/// The receiver's: a third of what a plan costs is allocation.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const YARDSTICK: &str = "yardstick JSON round trip of the same input";
const MODULES: usize = 10;
const MANIFEST: (&str, &str) = ("kcp-system", "harbour-lighthouse");

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    kyma(&mut criterion);
    for objects in [15, 200] {
        manifest(&mut criterion, objects);
    }
    criterion.final_summary();
}

/// Names a group; figures of a debug build must not pass for those of a release build.
fn named(name: &str) -> String {
    if cfg!(debug_assertions) { format!("{name} (debug build)") } else { name.to_owned() }
}

fn kyma(criterion: &mut Criterion) {
    let mut fleet = Fleet::new();
    let installed = fleet.installed();
    for (case, manifests) in [("all new", &[][..]), ("nothing changes", installed.as_slice())] {
        if !manifests.is_empty() {
            // Where nothing changes, the status says so already.
            fleet.kyma.status = Some(plan(&fleet.input(manifests)).status);
        }
        let input = fleet.input(manifests);
        // Else it is not the case that is measured.
        let planned = plan(&input);
        assert_eq!(planned.apply.len(), MODULES - manifests.len());
        assert_eq!(planned.decisions.len(), MODULES - manifests.len());
        let templates: Vec<&ModuleTemplate> =
            fleet.choices.iter().map(|c| c.outcome.as_ref().unwrap().template.as_ref()).collect();

        let group_of = |more: &str| named(&format!("planner, Kyma with 10 modules, {case}{more}"));
        let yardstick = || {
            let text = serde_json::to_vec(&(&fleet.kyma, &fleet.wanted, manifests, &templates)).unwrap();
            serde_json::from_slice::<(Kyma, KymaSpec, Vec<Manifest>, Vec<ModuleTemplate>)>(&text).unwrap()
        };
        let mut group = criterion.benchmark_group(group_of(""));
        group.bench_function("ours", |bencher| bencher.iter(|| plan(black_box(&input))));
        group.bench_function(YARDSTICK, |bencher| bencher.iter(yardstick));
        group.finish();
        // The choice of versions besides. Not what a reconcile does before: it unpacks what is kept of ten Manifests.
        let mut group = criterion.benchmark_group(group_of(", and its versions chosen"));
        group.bench_function("ours", |bencher| {
            bencher.iter(|| {
                let choices = choose(black_box(&fleet.wanted), &fleet.offered, &[]);
                plan(&fleet.input_of(manifests, &choices))
            });
        });
        group.bench_function(YARDSTICK, |bencher| bencher.iter(yardstick));
        group.finish();
    }
}

fn manifest(criterion: &mut Criterion, count: usize) {
    let rendered = rendered(count);
    let scopes = BTreeMap::from([
        (Gvk::of("v1", "Namespace"), Scope::Cluster),
        (Gvk::of("v1", "ConfigMap"), Scope::Namespaced),
        (Gvk::of("apps/v1", "Deployment"), Scope::Namespaced),
    ]);
    // The version before: one object in ten is obsolete now.
    let mut inventory = bundle(MANIFEST, rendered.clone(), &scopes).unwrap().objects;
    for object in inventory.iter_mut().step_by(10) {
        object.name.push_str("-old");
    }
    let run = |rendered: Vec<Value>| {
        let bundle = bundle(MANIFEST, rendered, &scopes).unwrap();
        let gone: Vec<ObjectRef> = prune(&inventory, &bundle.objects);
        (bundle, gone)
    };
    assert_eq!(run(rendered.clone()).1.len(), count.div_ceil(10));

    let mut group = criterion.benchmark_group(named(&format!("planner, bundle + prune {count} objects")));
    group.bench_function("ours", |bencher| {
        bencher.iter_batched(|| rendered.clone(), run, BatchSize::SmallInput);
    });
    group.bench_function(YARDSTICK, |bencher| {
        bencher.iter(|| {
            let text = serde_json::to_vec(black_box(&rendered)).unwrap();
            serde_json::from_slice::<Vec<Value>>(&text).unwrap()
        });
    });
    group.finish();
}

/// A module's objects: a Namespace, a few Deployments, ConfigMaps.
fn rendered(count: usize) -> Vec<Value> {
    (0..count)
        .map(|n| match n {
            0 => json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lighthouse-system"}}),
            n if n % 5 == 0 => json!({
                "apiVersion": "apps/v1", "kind": "Deployment",
                "metadata": {"name": format!("keeper-{n}"), "namespace": "lighthouse-system",
                             "labels": {"app.kubernetes.io/component": "lighthouse.tidewatch.dev"}},
                "spec": {"replicas": 1, "selector": {"matchLabels": {"app": format!("keeper-{n}")}},
                         "template": {"metadata": {"labels": {"app": format!("keeper-{n}")}},
                                      "spec": {"serviceAccountName": "lighthouse-keeper", "containers": [{
                                          "name": "keeper", "image": "example.local/lighthouse:1.0.0",
                                          "args": ["--leader-elect"],
                                          "resources": {"limits": {"cpu": "100m", "memory": "64Mi"},
                                                        "requests": {"cpu": "10m", "memory": "32Mi"}}}]}}}
            }),
            n => json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": format!("settings-{n}"), "namespace": "lighthouse-system"},
                "data": {"color": "white", "periodSeconds": "10"}
            }),
        })
        .collect()
}

/// What KCP offers and what one user wants of it.
struct Fleet {
    kyma: Kyma,
    wanted: KymaSpec,
    offered: Offered,
    choices: Vec<ResolvedModule>,
    sources: Sources,
}

/// As the engine keeps it.
struct Offered {
    releases: HashMap<String, Arc<ModuleReleaseMeta>>,
    templates: HashMap<String, Arc<ModuleTemplate>>,
}

impl Offered {
    fn new(modules: &[Module]) -> Self {
        let (mut releases, mut templates) = (HashMap::new(), HashMap::new());
        for Module { name: module, .. } in modules {
            let release = json!({"metadata": {"name": module}, "spec": {
                "moduleName": module, "ocmComponentName": format!("tidewatch.dev/module/{module}"),
                "channels": [{"channel": "regular", "version": "1.0.0"}, {"channel": "fast", "version": "1.1.0"}]
            }});
            releases.insert(module.clone(), Arc::new(serde_json::from_value(release).unwrap()));
            for version in ["1.0.0", "1.1.0"] {
                let name = format!("{module}-{version}");
                let template = json!({
                    "metadata": {"name": name, "namespace": "kcp-system", "generation": 1},
                    "spec": {"moduleName": module, "version": version, "descriptor": {},
                             "data": {"apiVersion": format!("{module}.tidewatch.dev/v1alpha1"), "kind": "Beacon",
                                      "metadata": {"name": "default"}, "spec": {"color": "white", "periodSeconds": 10}}}
                });
                templates.insert(name, Arc::new(serde_json::from_value(template).unwrap()));
            }
        }
        Self { releases, templates }
    }
}

impl Catalog for Offered {
    fn release(&self, module: &str) -> Option<Arc<ModuleReleaseMeta>> {
        self.releases.get(module).cloned()
    }

    fn template(&self, name: &str) -> Option<Arc<ModuleTemplate>> {
        self.templates.get(name).cloned()
    }

    fn templates_of(&self, _: &str) -> Vec<Arc<ModuleTemplate>> {
        Vec::new()
    }
}

impl Fleet {
    fn new() -> Self {
        let kyma = serde_json::from_value(json!({
            "metadata": {"name": "harbour", "namespace": "kcp-system", "uid": "kyma-uid", "generation": 3,
                         "labels": {"kyma-project.io/runtime-id": "runtime-harbour"}},
            "spec": {"channel": "regular"}
        }))
        .unwrap();
        let modules: Vec<Module> =
            (0..MODULES).map(|n| Module { name: format!("module{n}"), ..Module::default() }).collect();
        let offered = Offered::new(&modules);
        let wanted = KymaSpec { channel: "regular".into(), modules, ..KymaSpec::default() };
        let choices = choose(&wanted, &offered, &[]);
        let sources = choices
            .iter()
            .map(|choice| {
                let chosen = choice.outcome.as_ref().unwrap();
                let source = Source {
                    further: BTreeMap::new(),
                    repo: "registry.example:5000/modules".into(),
                    layer: format!("sha256:{}", "0a".repeat(32)),
                    type_: SourceType::OciDir,
                    images: vec!["example.local/lighthouse:1.0.0".into()],
                };
                (ComponentVersion::of(chosen), Ok(source))
            })
            .collect();
        Self { kyma, wanted, offered, choices, sources }
    }

    fn input<'a>(&'a self, manifests: &'a [Manifest]) -> Input<'a> {
        self.input_of(manifests, &self.choices)
    }

    fn input_of<'a>(&'a self, manifests: &'a [Manifest], choices: &'a [ResolvedModule]) -> Input<'a> {
        let Self { kyma, wanted, sources, .. } = self;
        Input {
            kyma,
            wanted,
            modules: choices,
            sources,
            manifests,
            facts: Facts::default(),
            now: Timestamp::UNIX_EPOCH,
        }
    }

    /// All modules installed and Ready, as they would be read back.
    fn installed(&self) -> Vec<Manifest> {
        let mut manifests = plan(&self.input(&[])).apply;
        for manifest in &mut manifests {
            manifest.metadata.generation = Some(1);
            let ready = Progress::Applied(Readiness::Ready);
            manifest.status = Some(manifest_status(manifest, &ready, &[], None, Timestamp::UNIX_EPOCH));
        }
        manifests
    }
}
