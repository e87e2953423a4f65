//! create, update, patch and apply.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{
    cluster::Cluster,
    decode::{Unknown, decode, keep_servers, place, strip_servers},
    refusal::Refusal,
    request::{Answer, Outcome, PatchKind, Query, Request, Target},
};
use crate::{
    fields::{
        apply::Apply,
        managed::{self, Door, Managed, Writer},
    },
    kinds::{Kind, checks, custom, defaults},
    object::{
        Stored,
        meta::{self, metadata_mut, put},
        stored,
    },
    patch,
    schema::validate::{self, Cause},
};

/// Longest object, as text.
const LARGEST: usize = 3 * 1024 * 1024;
const SUFFIX: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Where the change of an object comes from.
struct Change<'a> {
    kind: &'a Arc<Kind>,
    request: &'a Request,
    now: Timestamp,
    warnings: Vec<String>,
    /// Set by an apply, which has worked out who owns what.
    managed: Option<Managed>,
    /// Whether a missing resourceVersion means "whatever it is".
    unconditional: bool,
}

impl Cluster {
    pub(super) fn create(
        &mut self,
        kind: &Arc<Kind>,
        request: &Request,
        body: Value,
        now: Timestamp,
    ) -> Result<Outcome, Refusal> {
        let mut warnings = Vec::new();
        let dry = dry_run(&request.query, "CreateOptions")?;
        let object = decode(body, kind, Unknown::of(&request.query)?, &mut warnings)?;
        let revision = meta::text(&object, "resourceVersion").unwrap_or_default();
        if !matches!(revision, "" | "0") {
            return Err(Refusal::new(500, "", "resourceVersion should not be set on objects to be created"));
        }
        self.insert(kind, request, object, None, warnings, dry, now)
    }

    /// A new object, from a create or an apply.
    #[expect(clippy::too_many_arguments, reason = "what a create and an apply have in common")]
    fn insert(
        &mut self,
        kind: &Arc<Kind>,
        request: &Request,
        mut object: Value,
        applied: Option<Managed>,
        warnings: Vec<String>,
        dry: bool,
        now: Timestamp,
    ) -> Result<Outcome, Refusal> {
        place(&mut object, kind, &request.target)?;
        strip_servers(&mut object);
        self.admit(kind, &object, &request.target)?;
        if meta::text(&object, "name").is_none()
            && let Some(prefix) = meta::text(&object, "generateName").map(str::to_owned)
        {
            let name = self.generated(&prefix);
            metadata_mut(&mut object).insert("name".into(), name.into());
        }
        let name = meta::name(&object).to_owned();
        if kind.has_status && !kind.is("apiextensions.k8s.io", "customresourcedefinitions") {
            meta::as_object(&mut object).remove("status");
        }
        Self::shape(&mut object, kind);
        self.check(kind, &object, None)?;
        let key = Self::key(kind, &request.target.namespace, &name);
        if let Some(there) = self.objects.get(&key) {
            return Err(Refusal::exists(kind, &name, there.is_deleted()));
        }
        if self.objects.len() >= self.options.most_objects {
            return Err(Refusal::new(507, "StorageFull", "the simulated cluster is full"));
        }
        let uid = self.uid();
        let metadata = metadata_mut(&mut object);
        metadata.insert("uid".into(), uid.to_string().into());
        metadata.insert("creationTimestamp".into(), stored::time(now.as_second()));
        if kind.has_generation {
            metadata.insert("generation".into(), json!(1));
        }
        let reset = takes_managed(&mut object).is_some_and(|given| given.is_empty());
        let managed = match applied {
            Some(managed) => managed,
            None if reset => Managed::default(),
            None => {
                let mut managed = Managed::default();
                let nothing = managed::nothing(&kind.api_version(), &kind.kind, kind.zero());
                managed.update(&nothing, &object, kind.schema(), &writer(kind, request), now.as_second());
                managed
            }
        };
        managed.put(&mut object);
        self.assign(&mut object, kind, None);
        if dry {
            return Ok(dry_answer(kind, object, 201, warnings));
        }
        let stored = self.store(kind, object, now);
        Ok(Self::answer_with(kind, &stored, 201, warnings))
    }

    /// Whether the namespace takes new objects.
    fn admit(&self, kind: &Kind, object: &Value, target: &Target) -> Result<(), Refusal> {
        if !kind.namespaced {
            return Ok(());
        }
        let namespace =
            self.namespace(&target.namespace).ok_or_else(|| Refusal::namespace_missing(&target.namespace))?;
        if namespace.is_deleted() {
            return Err(Refusal::terminating(kind, meta::name(object), &target.namespace));
        }
        Ok(())
    }

    fn generated(&mut self, prefix: &str) -> String {
        let bytes = self.uid().into_bytes();
        let suffix = bytes.iter().take(5).map(|byte| {
            let index = usize::from(*byte) % SUFFIX.len();
            char::from(SUFFIX.get(index).copied().unwrap_or(b'x'))
        });
        prefix.chars().take(58).chain(suffix).collect()
    }

    /// Defaults.
    fn shape(object: &mut Value, kind: &Kind) {
        if kind.is_builtin() {
            let schema = kind.schema();
            crate::schema::shape::drop_nulls(object, schema);
            crate::schema::shape::drop_empty(object, schema);
            defaults::set(object, kind);
        } else {
            crate::schema::shape::default(object, kind.schema());
        }
    }

    /// What the server gives to each object, and nobody owns.
    fn assign(&mut self, object: &mut Value, kind: &Kind, live: Option<&Value>) {
        if kind.is("", "services") {
            self.address(object, live);
        }
        if live.is_none() {
            defaults::admit(object, kind);
        }
        if kind.is("apiextensions.k8s.io", "customresourcedefinitions") && live.is_none() {
            let versions = object.pointer("/spec/versions").and_then(Value::as_array);
            let stored: Vec<Value> = versions
                .into_iter()
                .flatten()
                .filter(|version| version.get("storage") == Some(&json!(true)))
                .filter_map(|version| version.get("name").cloned())
                .collect();
            let names = json!({"kind": "", "plural": ""});
            let status = json!({"conditions": null, "acceptedNames": names, "storedVersions": stored});
            put(meta::as_object(object), "status", Some(status));
        }
    }

    fn address(&mut self, object: &mut Value, live: Option<&Value>) {
        let before = live.and_then(|live| live.pointer("/spec/clusterIP")).cloned();
        let spec = meta::child_mut(object, "spec");
        if spec.get("type") == Some(&json!("ExternalName")) {
            return;
        }
        let given = spec.get("clusterIP").filter(|ip| **ip != "").cloned();
        let ip = given.or(before).unwrap_or_else(|| {
            self.addresses += 1;
            let [_, high, middle, low] = self.addresses.to_be_bytes();
            json!(format!("10.{high}.{middle}.{low}"))
        });
        spec.insert("clusterIPs".into(), json!([ip]));
        spec.insert("clusterIP".into(), ip);
        spec.entry("ipFamilies").or_insert_with(|| json!(["IPv4"]));
        spec.entry("ipFamilyPolicy").or_insert_with(|| json!("SingleStack"));
    }

    fn check(&self, kind: &Kind, object: &Value, live: Option<&Value>) -> Result<(), Refusal> {
        if kind.is("apiextensions.k8s.io", "customresourcedefinitions")
            && let Some(what) = custom::unsupported(object)
            && !(self.options.ignore_cel && what.contains("CEL"))
        {
            return Err(Refusal::not_simulated(&what));
        }
        let mut causes = if live.is_none() { checks::name(object, kind) } else { Vec::new() };
        if kind.is_builtin() {
            causes.extend(checks::object(object, kind));
        } else {
            causes.extend(validate::check(object, kind.schema()));
        }
        if let Some(live) = live {
            causes.extend(checks::change(live, object, kind));
            causes.extend(new_finalizers(live, object));
        }
        if !causes.is_empty() {
            return Err(Refusal::invalid(&kind.kind, &kind.group, meta::name(object), &causes));
        }
        if object.to_string().len() > LARGEST {
            return Err(Refusal::new(
                413,
                "RequestEntityTooLarge",
                "Request entity too large: limit is 3145728",
            ));
        }
        Ok(())
    }

    pub(super) fn update(
        &mut self,
        kind: &Arc<Kind>,
        request: &Request,
        body: Value,
        now: Timestamp,
    ) -> Result<Outcome, Refusal> {
        if request.target.subresource == "scale" {
            return self.put_scale(kind, request, &body, now);
        }
        let mut warnings = Vec::new();
        let dry = dry_run(&request.query, "UpdateOptions")?;
        let mut object = decode(body, kind, Unknown::of(&request.query)?, &mut warnings)?;
        place(&mut object, kind, &request.target)?;
        let stored = self.lookup(kind, &request.target.namespace, &request.target.name)?;
        let unconditional = kind.is_builtin()
            && !matches!(
                kind.plural.as_str(),
                "customresourcedefinitions" | "leases" | "poddisruptionbudgets" | "apiservices"
            );
        let change = Change { kind, request, now, warnings, managed: None, unconditional };
        self.replace(change, &stored, object, dry)
    }

    pub(super) fn patch(
        &mut self,
        kind: &Arc<Kind>,
        request: &Request,
        how: PatchKind,
        patch: &Value,
        now: Timestamp,
    ) -> Result<Outcome, Refusal> {
        let dry = dry_run(&request.query, "PatchOptions")?;
        if how == PatchKind::Apply {
            return self.apply_patch(kind, request, patch, dry, now);
        }
        if how == PatchKind::Strategic && !kind.is_builtin() {
            let accepted = [
                "application/json-patch+json",
                "application/merge-patch+json",
                "application/apply-patch+yaml",
            ];
            return Err(Refusal::unsupported_media_type(&accepted));
        }
        if request.target.subresource == "scale" {
            return self.patch_scale(kind, request, how, patch, now);
        }
        self.patch_object(kind, request, how, patch, dry, now)
    }

    fn patch_object(
        &mut self,
        kind: &Arc<Kind>,
        request: &Request,
        how: PatchKind,
        patch: &Value,
        dry: bool,
        now: Timestamp,
    ) -> Result<Outcome, Refusal> {
        let stored = self.lookup(kind, &request.target.namespace, &request.target.name)?;
        let live = Self::render(kind, &stored);
        let patched = patched(&live, how, patch, kind)?;
        let mut warnings = Vec::new();
        let shown = patched.to_string();
        let mut object =
            decode(patched, kind, Unknown::of(&request.query)?, &mut warnings).map_err(|refusal| {
                match refusal.code {
                    400 => Refusal::invalid(
                        "",
                        "",
                        "",
                        &[Cause::invalid("patch", &shown.into(), &refusal.message)],
                    ),
                    _ => refusal,
                }
            })?;
        place(&mut object, kind, &request.target)?;
        let change = Change { kind, request, now, warnings, managed: None, unconditional: true };
        self.replace(change, &stored, object, dry)
    }

    fn apply_patch(
        &mut self,
        kind: &Arc<Kind>,
        request: &Request,
        config: &Value,
        dry: bool,
        now: Timestamp,
    ) -> Result<Outcome, Refusal> {
        let options = |cause: Cause| Refusal::invalid("PatchOptions", "meta.k8s.io", "", &[cause]);
        if request.query.field_manager.is_empty() {
            return Err(options(Cause::required("fieldManager", "is required for apply patch")));
        }
        if request.target.subresource == "scale" {
            return Err(Refusal::not_simulated("server-side apply of /scale"));
        }
        let mut warnings = Vec::new();
        typed(config, kind)?;
        let mut config = decode(config.clone(), kind, Unknown::of(&request.query)?, &mut warnings)?;
        place(&mut config, kind, &request.target)?;
        if takes_managed(&mut config).is_some() {
            return Err(Refusal::bad_request("metadata.managedFields must be nil"));
        }
        let writer = writer(kind, request);
        let apply = Apply { writer: &writer, force: request.query.force, now: now.as_second() };
        let conflict = |conflicts: Vec<_>| Refusal::apply_conflict(&conflicts);
        let key = Self::key(kind, &request.target.namespace, &request.target.name);
        let Some(stored) = self.objects.get(&key).cloned() else {
            if !request.target.subresource.is_empty() {
                return Err(Refusal::not_found(kind, &request.target.name));
            }
            if meta::text(&config, "resourceVersion").is_some() {
                return Err(Refusal::modified(kind, &request.target.name));
            }
            strip_servers(&mut config);
            let nothing = managed::nothing(&kind.api_version(), &kind.kind, Value::Null);
            let applied =
                apply.run(&nothing, &config, &Managed::default(), kind.schema()).map_err(conflict)?;
            return self.insert(kind, request, applied.object, Some(applied.managed), warnings, dry, now);
        };
        if meta::text(&config, "resourceVersion").is_some_and(|given| given != stored.revision.to_string()) {
            return Err(Refusal::modified(kind, &request.target.name));
        }
        if meta::text(&config, "uid").is_some_and(|given| given != stored.uid.to_string()) {
            return Err(Refusal::modified(kind, &request.target.name));
        }
        let mut live = Self::render(kind, &stored);
        let mut managed = Managed::of(&live);
        _ = takes_managed(&mut live);
        managed.adopt(&live, kind.schema(), &kind.api_version(), now.as_second());
        let applied = apply.run(&live, &config, &managed, kind.schema()).map_err(conflict)?;
        let change =
            Change { kind, request, now, warnings, managed: Some(applied.managed), unconditional: true };
        self.replace(change, &stored, applied.object, dry)
    }

    /// Puts an object in the place of another, as far as the request's door allows.
    fn replace(
        &mut self,
        change: Change<'_>,
        stored: &Arc<Stored>,
        mut object: Value,
        dry: bool,
    ) -> Result<Outcome, Refusal> {
        let Change { kind, request, now, warnings, managed: applied, unconditional } = change;
        let name = request.target.name.as_str();
        let mut live = Self::render(kind, stored);
        let given = meta::text(&object, "resourceVersion").unwrap_or_default().to_owned();
        match given.as_str() {
            "" | "0" if unconditional => {}
            "" | "0" => {
                let cause =
                    Cause::invalid("metadata.resourceVersion", &json!(0), "must be specified for an update");
                return Err(Refusal::invalid(&kind.plural, &kind.group, name, &[cause]));
            }
            given if given == stored.revision.to_string() => {}
            given if given.parse::<u64>().is_err() => {
                let given = Value::from(given);
                return Err(Refusal::new(
                    500,
                    "",
                    format!("strconv.ParseUint: parsing {given}: invalid syntax"),
                ));
            }
            _ => return Err(Refusal::modified(kind, name)),
        }
        let uid = stored.uid.to_string();
        if let Some(given) = meta::text(&object, "uid").filter(|given| *given != uid) {
            return Err(Refusal::other_uid(kind, stored.namespace(), name, given, &uid));
        }
        let new_managed = takes_managed(&mut object);
        let old_managed = Managed::of(&live);
        let raw_managed = metadata_mut(&mut live).remove("managedFields");
        keep_servers(&mut object, &live);
        through(&mut object, &live, kind, request);
        Self::shape(&mut object, kind);
        self.check(kind, &object, Some(&live))?;
        let bumped = kind.has_generation && spec_differs(&live, &object, kind);
        if bumped {
            let generation = stored.generation + 1;
            metadata_mut(&mut object).insert("generation".into(), json!(generation));
        }
        let writer = writer(kind, request);
        let by_apply = applied.is_some();
        let reset = new_managed
            .is_some_and(|given| given.iter().all(|entry| entry.as_object().is_some_and(Map::is_empty)));
        let managed = match applied {
            Some(managed) => managed,
            None if reset => Managed::default(),
            // Nobody's fields stay nobody's until somebody applies.
            None if old_managed.0.is_empty() => Managed::default(),
            None => {
                let mut managed = old_managed.clone();
                managed.update(&live, &object, kind.schema(), &writer, now.as_second());
                managed
            }
        };
        self.assign(&mut object, kind, Some(&live));
        let same_owners = |a: &Managed, b: &Managed| {
            a.0.len() == b.0.len()
                && a.0.iter().zip(&b.0).all(|(a, b)| {
                    (&a.set, &a.manager, a.applies, &a.subresource, &a.api_version)
                        == (&b.set, &b.manager, b.applies, &b.subresource, &b.api_version)
                })
        };
        let unchanged = object == live
            && if by_apply { managed == old_managed } else { same_owners(&managed, &old_managed) };
        if unchanged {
            put(metadata_mut(&mut object), "managedFields", raw_managed);
        } else {
            managed.put(&mut object);
        }
        let finished =
            meta::text(&object, "deletionTimestamp").is_some() && meta::finalizers(&object).is_empty();
        if dry {
            return Ok(dry_answer(kind, object, 200, warnings));
        }
        if finished && !self.is_held(kind, stored) {
            let key = Self::key(kind, &request.target.namespace, name);
            self.remove(&key, now);
            return Ok(Outcome::Object(Answer { code: 200, object, warnings, kind: Some(Arc::clone(kind)) }));
        }
        if unchanged {
            return Ok(Self::answer_with(kind, stored, 200, warnings));
        }
        let stored = self.store(kind, object, now);
        Ok(Self::answer_with(kind, &stored, 200, warnings))
    }

    pub(super) fn get_scale(&self, kind: &Arc<Kind>, target: &Target) -> Result<Outcome, Refusal> {
        let stored = self.lookup(kind, &target.namespace, &target.name)?;
        let object = Self::render(kind, &stored);
        Ok(Outcome::Object(Answer {
            code: 200,
            object: scale(kind, &object),
            warnings: Vec::new(),
            kind: None,
        }))
    }

    fn put_scale(
        &mut self,
        kind: &Arc<Kind>,
        request: &Request,
        body: &Value,
        now: Timestamp,
    ) -> Result<Outcome, Refusal> {
        let replicas = body.pointer("/spec/replicas").cloned().unwrap_or(json!(0));
        let place = kind.scale.as_ref().map(|scale| scale.spec.clone()).unwrap_or_default();
        let mut patch = replicas;
        for step in place.split('.').rev() {
            patch = json!({step: patch});
        }
        if let Some(revision) = meta::text(body, "resourceVersion") {
            metadata_mut(&mut patch).insert("resourceVersion".into(), revision.into());
        }
        let dry = dry_run(&request.query, "UpdateOptions")?;
        match self.patch_object(kind, request, PatchKind::Merge, &patch, dry, now)? {
            Outcome::Object(answer) => {
                let object = scale(kind, &answer.object);
                Ok(Outcome::Object(Answer { code: 200, object, warnings: answer.warnings, kind: None }))
            }
            other => Ok(other),
        }
    }

    fn patch_scale(
        &mut self,
        kind: &Arc<Kind>,
        request: &Request,
        how: PatchKind,
        patch: &Value,
        now: Timestamp,
    ) -> Result<Outcome, Refusal> {
        let stored = self.lookup(kind, &request.target.namespace, &request.target.name)?;
        let before = scale(kind, &Self::render(kind, &stored));
        let mut after = match how {
            PatchKind::Json => patch::json(&before, patch).map_err(|error| unpatched(&error))?,
            _ => patch::merge(&before, patch),
        };
        if patch.pointer("/metadata/resourceVersion").is_none() {
            metadata_mut(&mut after).remove("resourceVersion");
        }
        self.put_scale(kind, request, &after, now)
    }
}

/// Whether an applied configuration is of the kind, and of its types.
fn typed(config: &Value, kind: &Kind) -> Result<(), Refusal> {
    let text = |field: &str| config.get(field).and_then(Value::as_str).unwrap_or_default();
    let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
    let gvk = format!("{group}/{version}, Kind={}", text("kind"));
    if text("kind") != kind.kind || text("apiVersion") != kind.api_version() {
        return Err(Refusal::bad_request(format!("invalid object type: {gvk}")));
    }
    let wrong = |why: String| {
        let namespace = meta::text(config, "namespace").unwrap_or_default();
        let message =
            format!("failed to create typed patch object ({namespace}/{}; {gvk}): {why}", meta::name(config));
        Err(Refusal::new(500, "", message))
    };
    if let Some((path, _, want)) = validate::first_type_error(config, kind.schema()) {
        let mut value = config;
        for step in path.split('.') {
            value = value.get(step).unwrap_or(value);
        }
        return wrong(format!(".{path}: expected {want}, got &value.valueUnstructured{{Value:{value}}}"));
    }
    let mut bare = config.clone();
    metadata_mut(&mut bare).remove("managedFields");
    let unknown = crate::schema::shape::prune(&mut bare, kind.schema());
    match unknown.as_slice() {
        [] => Ok(()),
        [only] => wrong(format!(".{only}: field not declared in schema")),
        many => {
            let lines: Vec<String> =
                many.iter().map(|path| format!("  .{path}: field not declared in schema")).collect();
            wrong(format!("errors:\n{}", lines.join("\n")))
        }
    }
}

fn scale(kind: &Kind, object: &Value) -> Value {
    let paths = kind.scale.as_ref();
    let at = |path: Option<&String>| {
        let pointer = format!("/{}", path.map(|path| path.replace('.', "/")).unwrap_or_default());
        object.pointer(&pointer).cloned()
    };
    let mut metadata = Map::new();
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        put(&mut metadata, field, object.get("metadata").and_then(|all| all.get(field)).cloned());
    }
    let mut spec = Map::new();
    put(&mut spec, "replicas", at(paths.map(|paths| &paths.spec)).filter(|replicas| *replicas != 0));
    let mut status = json!({"replicas": at(paths.map(|paths| &paths.status)).unwrap_or(json!(0))});
    let selector = match paths.and_then(|paths| paths.selector.as_ref()) {
        Some(path) => at(Some(path)),
        None if kind.is_builtin() => {
            object.pointer("/spec/selector/matchLabels").and_then(Value::as_object).map(|labels| {
                let pairs: Vec<String> = labels
                    .iter()
                    .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
                    .collect();
                Value::from(pairs.join(","))
            })
        }
        None => None,
    };
    put(meta::as_object(&mut status), "selector", selector);
    json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata, "spec": spec, "status": status})
}

fn unpatched(error: &patch::PatchError) -> Refusal {
    match error {
        patch::PatchError::Inapplicable => Refusal::unpatched(error.to_string()),
        patch::PatchError::Malformed(_) => Refusal::bad_request(error.to_string()),
        patch::PatchError::TooLarge(_) => Refusal::new(413, "RequestEntityTooLarge", error.to_string()),
    }
}

fn patched(live: &Value, how: PatchKind, patch: &Value, kind: &Kind) -> Result<Value, Refusal> {
    let result = match how {
        PatchKind::Json => patch::json(live, patch),
        PatchKind::Merge if !patch.is_object() => {
            Err(patch::PatchError::Malformed("a merge patch is an object".to_owned()))
        }
        PatchKind::Merge | PatchKind::Apply => Ok(patch::merge(live, patch)),
        PatchKind::Strategic => patch::strategic(live, patch, kind.schema()),
    };
    result.map_err(|error| unpatched(&error))
}

/// What the request's door lets through; the rest stays.
fn through(object: &mut Value, live: &Value, kind: &Kind, request: &Request) {
    let keep =
        |object: &mut Value, field: &str| put(meta::as_object(object), field, live.get(field).cloned());
    match door(kind, &request.target.subresource) {
        Door::Whole => {}
        Door::Main => keep(object, "status"),
        Door::Status => {
            let status = object.get("status").cloned();
            *object = live.clone();
            put(meta::as_object(object), "status", status);
        }
        Door::BuiltinStatus => {
            keep(object, "spec");
            let labels = live.pointer("/metadata/labels").cloned();
            put(metadata_mut(object), "labels", labels);
        }
    }
}

fn door(kind: &Kind, subresource: &str) -> Door {
    match (kind.has_status, subresource, kind.is_builtin()) {
        (true, "status", true) => Door::BuiltinStatus,
        (true, "status", false) => Door::Status,
        (true, ..) => Door::Main,
        (false, ..) => Door::Whole,
    }
}

fn writer(kind: &Kind, request: &Request) -> Writer {
    let named = &request.query.field_manager;
    Writer {
        manager: if named.is_empty() { request.agent.clone() } else { named.clone() },
        api_version: kind.api_version(),
        subresource: request.target.subresource.clone(),
        door: door(kind, &request.target.subresource),
    }
}

/// Whether what `generation` counts differs.
fn spec_differs(live: &Value, object: &Value, kind: &Kind) -> bool {
    if kind.is_builtin() {
        let fields: &[&str] = match kind.group.as_str() {
            "admissionregistration.k8s.io" => &["webhooks"],
            _ => &["spec"],
        };
        return fields.iter().any(|field| live.get(*field) != object.get(*field));
    }
    let counted = |value: &Value| {
        let mut map = value.as_object().cloned().unwrap_or_default();
        map.remove("metadata");
        if kind.has_status {
            map.remove("status");
        }
        map
    };
    counted(live) != counted(object)
}

fn new_finalizers(live: &Value, object: &Value) -> Option<Cause> {
    meta::text(live, "deletionTimestamp")?;
    let had = meta::finalizers(live);
    let new: Vec<&str> = meta::finalizers(object).into_iter().filter(|one| !had.contains(one)).collect();
    let shown: Vec<String> = new.iter().map(|one| Value::from(*one).to_string()).collect();
    (!new.is_empty()).then(|| {
        let why = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
            shown.join(", ")
        );
        Cause::forbidden("metadata.finalizers", &why)
    })
}

/// `managedFields` of a body, taken out of it.
fn takes_managed(object: &mut Value) -> Option<Vec<Value>> {
    match metadata_mut(object).remove("managedFields") {
        Some(Value::Array(entries)) => Some(entries),
        _ => None,
    }
}

pub(super) fn dry_run(query: &Query, options: &str) -> Result<bool, Refusal> {
    if query.dry_run.iter().all(String::is_empty) {
        return Ok(false);
    }
    if query.dry_run.iter().all(|mode| mode == "All") {
        return Ok(true);
    }
    let given = Value::from(query.dry_run.clone());
    let message = format!("Unsupported value: {given}: supported values: \"All\"");
    let cause = Cause::new("dryRun", "FieldValueNotSupported", message);
    Err(Refusal::invalid(options, "meta.k8s.io", "", &[cause]))
}

fn dry_answer(kind: &Arc<Kind>, object: Value, code: u16, warnings: Vec<String>) -> Outcome {
    Outcome::Object(Answer { code, object, warnings, kind: Some(Arc::clone(kind)) })
}
