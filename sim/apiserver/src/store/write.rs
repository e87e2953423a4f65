//! create, update, patch and apply.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    admission, certificates,
    decode::{decode, decode_applied, decode_patched, locate, restore_server_fields, strip_server_fields},
    definitions, escalation,
    log::Key,
    options, owners,
    refusal::Refusal,
    render::render,
    request::{Outcome, Request, answer_object, answer_with},
    rules::{keep_fields, patched, spec_differs, typed, writer},
    state::State,
    target::{PatchKind, Verb},
};
use crate::{
    authz::Ask,
    fields::{
        apply::Apply,
        given::GivenOwners,
        managed::{self, Managed},
    },
    kinds::{Kind, checks, defaults},
    object::{
        Stored,
        meta::{self, metadata_mut, put},
        stored,
    },
    schema::validate::Cause,
};

/// One write request.
pub(super) struct Write<'a> {
    pub(super) state: &'a mut State,
    pub(super) kind: &'a Arc<Kind>,
    pub(super) request: &'a Request,
    pub(super) dry_run: bool,
    pub(super) now: Timestamp,
    pub(super) warnings: Vec<String>,
}

/// A new state of a stored object.
struct Replacement {
    stored: Arc<Stored>,
    object: Value,
    /// Ownership computed by an apply.
    applied: Option<Managed>,
    /// Whether to accept a missing resourceVersion.
    unconditional: bool,
    /// Whether to check the uid.
    checks_uid: bool,
}

/// Owners and values before an update.
struct Before<'a> {
    /// Without `managedFields`.
    live: &'a Value,
    owners: &'a Managed,
    /// Metadata that the update omits: it keeps the values, but loses their owners.
    omitted: &'a [String],
}

impl<'a> Write<'a> {
    pub(super) fn run(
        state: &'a mut State,
        kind: &'a Arc<Kind>,
        request: &'a Request,
        now: Timestamp,
    ) -> Result<Outcome, Refusal> {
        let dry_run = options::of_write(&request.verb, &request.query)?;
        let write = Self { state, kind, request, dry_run, now, warnings: Vec::new() };
        match &request.verb {
            Verb::Create(body) => write.create(body.clone()),
            Verb::Update(body) => write.update(body.clone()),
            Verb::Patch(how, patch) => write.patch(*how, patch),
            _ => Err(Refusal::method_not_allowed()),
        }
    }

    fn create(mut self, body: Value) -> Result<Outcome, Refusal> {
        let object = decode(body, self.kind, &self.request.query, &mut self.warnings)?;
        let revision = meta::text(&object, "resourceVersion").unwrap_or_default();
        if !matches!(revision, "" | "0") && !self.dry_run {
            return Err(Refusal::new(500, "", "resourceVersion should not be set on objects to be created"));
        }
        self.insert(object, None)
    }

    fn update(mut self, body: Value) -> Result<Outcome, Refusal> {
        let Self { kind, request, .. } = self;
        if request.target.subresource == "scale" {
            return self.put_scale(body);
        }
        let mut object = decode(body, kind, &request.query, &mut self.warnings)?;
        if meta::name(&object).is_empty() {
            return Err(Refusal::nameless(&request.target.name));
        }
        locate(&mut object, kind, &request.target)?;
        let stored = match self.lookup() {
            Err(_) if kind.is_created_by_update() && request.target.subresource.is_empty() => {
                return self.insert(object, None);
            }
            found => found?,
        };
        let unconditional = kind.is_builtin()
            && !matches!(
                kind.plural.as_str(),
                "customresourcedefinitions" | "leases" | "poddisruptionbudgets" | "apiservices"
            );
        self.replace(Replacement { stored, object, applied: None, unconditional, checks_uid: true })
    }

    fn patch(self, how: PatchKind, patch: &Value) -> Result<Outcome, Refusal> {
        let is_scale = self.request.target.subresource == "scale";
        if how == PatchKind::Apply {
            return self.apply(patch);
        }
        if how == PatchKind::Strategic && !self.kind.is_builtin() {
            let accepted = [
                "application/json-patch+json",
                "application/merge-patch+json",
                "application/apply-patch+yaml",
            ];
            return Err(Refusal::unsupported_media_type(&accepted));
        }
        if is_scale { self.patch_scale(how, patch) } else { self.patch_object(how, patch) }
    }

    pub(super) fn patch_object(mut self, how: PatchKind, patch: &Value) -> Result<Outcome, Refusal> {
        let Self { kind, request, .. } = self;
        let stored = self.lookup()?;
        let patched = patched(&render(kind, &stored), how, patch, kind)?;
        let mut object = decode_patched(patched, kind, &request.query, &mut self.warnings)?;
        if meta::name(&object).is_empty() {
            return Err(Refusal::nameless(&request.target.name));
        }
        locate(&mut object, kind, &request.target)?;
        self.replace(Replacement { stored, object, applied: None, unconditional: true, checks_uid: false })
    }

    fn apply(mut self, sent: &Value) -> Result<Outcome, Refusal> {
        let Self { kind, request, now, .. } = self;
        if request.target.subresource == "scale" {
            return Err(Refusal::not_simulated("server-side apply of /scale"));
        }
        typed(sent, kind)?;
        let mut config = decode_applied(sent.clone(), kind, &request.query, &mut self.warnings)?;
        metadata_mut(&mut config).remove("managedFields");
        let writer = writer(kind, request);
        let force = request.query.force == Some(true);
        let apply = Apply { writer: &writer, sent, force, now: now.as_second() };
        let conflict = |conflicts: Vec<_>| Refusal::apply_conflict(&conflicts);
        let Ok(stored) = self.lookup() else {
            self.prepare_applied(&mut config)?;
            let nothing = managed::nothing(&kind.api_version(), &kind.kind, Value::Null);
            let applied =
                apply.run(&nothing, &config, &Managed::default(), kind.schema()).map_err(conflict)?;
            return self.insert(applied.object, Some(applied.managed));
        };
        let mut live = render(kind, &stored);
        let Some(mut managed) = owners::known(&self.state.objects, Managed::of(&live), kind) else {
            return Err(Refusal::not_simulated("an apply where a removed version owns fields"));
        };
        metadata_mut(&mut live).remove("managedFields");
        let nothing = managed::nothing(&kind.api_version(), &kind.kind, kind.zero());
        managed.adopt(&nothing, &live, kind.schema(), &writer, now.as_second());
        let applied = apply.run(&live, &config, &managed, kind.schema()).map_err(conflict)?;
        // Missing: the target's name; empty: refused.
        if sent.pointer("/metadata/name").is_some() && meta::name(&config).is_empty() {
            return Err(Refusal::nameless(&request.target.name));
        }
        locate(&mut config, kind, &request.target)?;
        self.replace(Replacement {
            stored,
            object: applied.object,
            applied: Some(applied.managed),
            unconditional: true,
            checks_uid: false,
        })
    }

    /// Checks the configuration of an object that does not exist.
    fn prepare_applied(&self, config: &mut Value) -> Result<(), Refusal> {
        let target = &self.request.target;
        if !target.subresource.is_empty() {
            return Err(Refusal::not_found(self.kind, &target.name));
        }
        if meta::name(config).is_empty() {
            return Err(Refusal::nameless(&target.name));
        }
        readable_revision(meta::text(config, "resourceVersion").unwrap_or_default())?;
        if let Some(uid) = meta::text(config, "uid") {
            return Err(Refusal::gone_uid(self.kind, &target.name, uid));
        }
        strip_server_fields(config);
        Ok(())
    }

    fn lookup(&self) -> Result<Arc<Stored>, Refusal> {
        let target = &self.request.target;
        self.state.objects.lookup(self.kind, &target.namespace, &target.name)
    }

    /// Stores a new object, for create, update and apply.
    fn insert(mut self, mut object: Value, applied: Option<Managed>) -> Result<Outcome, Refusal> {
        let Self { kind, request, now, .. } = self;
        let is_create = matches!(request.verb, Verb::Create(_));
        if is_create && definitions::is_terminating(&self.state.objects, kind) {
            let why = "create not allowed while custom resource definition is terminating";
            return Err(Refusal::forbidden(&kind.plural, &kind.group, meta::name(&object), why));
        }
        locate(&mut object, kind, &request.target)?;
        let revision = meta::text(&object, "resourceVersion").map(str::to_owned);
        strip_server_fields(&mut object);
        if kind.namespaced {
            self.state.check_namespace(kind, &request.target.namespace, meta::name(&object))?;
        }
        self.generate_name(&mut object);
        let name = meta::name(&object).to_owned();
        escalation::check(self.state, kind, request, None, &object)?;
        if kind.has_status && !kind.is("apiextensions.k8s.io", "customresourcedefinitions") {
            meta::as_object(&mut object).remove("status");
        }
        if kind.has_approval() {
            certificates::set_requester(&mut object, &request.user);
        }
        admission::shape(&mut object, kind);
        admission::check(self.state, kind, &object, None, "")?;
        if kind.has_approval() {
            certificates::check_subject(kind, &object)?;
        }
        self.warnings.extend(admission::warnings(&self.state.options, kind, &object, None));
        self.check_insert(&name)?;
        self.identify(&mut object);
        let mut managed = self.first_owners(&mut object, applied);
        managed.sort();
        owners::check(&managed, kind, &name)?;
        managed.put(&mut object);
        admission::assign(&mut self.state.addresses, &mut object, kind, None);
        if self.dry_run {
            // Echoed, since nothing is stored.
            if let Some(revision) = revision.filter(|_| is_create) {
                metadata_mut(&mut object).insert("resourceVersion".into(), revision.into());
            }
            return Ok(answer_object(kind, object, 201, self.warnings));
        }
        definitions::convert_to_stored(&self.state.objects, &self.state.served, kind, &mut object);
        let stored = self.state.store(kind, object, now);
        Ok(answer_with(kind, &stored, 201, self.warnings))
    }

    fn generate_name(&mut self, object: &mut Value) {
        if meta::text(object, "name").is_none()
            && let Some(prefix) = meta::text(object, "generateName").map(str::to_owned)
        {
            let name = admission::generated_name(&prefix, self.state.objects.uid());
            metadata_mut(object).insert("name".into(), name.into());
        }
    }

    fn check_insert(&mut self, name: &str) -> Result<(), Refusal> {
        let Self { state, kind, request, .. } = self;
        if let Some(existing) = state.objects.find(kind, &request.target.namespace, name) {
            return Err(Refusal::exists(kind, name, existing.is_deleted()));
        }
        // Creating by apply or update needs `create`.
        if !matches!(request.verb, Verb::Create(_)) && !request.user.may_all() {
            let ask = Ask::of("create", &request.target, &request.query);
            state.rights.authorize(&state.objects, &request.user, &ask)?;
        }
        if state.objects.len() >= state.options.max_objects {
            return Err(Refusal::new(507, "StorageFull", "the simulated cluster is full"));
        }
        Ok(())
    }

    /// Sets uid, creation time and generation.
    fn identify(&mut self, object: &mut Value) {
        let uid = self.state.objects.uid();
        let metadata = metadata_mut(object);
        metadata.insert("uid".into(), uid.to_string().into());
        metadata.insert("creationTimestamp".into(), stored::time(self.now.as_second()));
        if self.kind.has_generation {
            metadata.insert("generation".into(), json!(1));
        }
    }

    fn first_owners(&self, object: &mut Value, applied: Option<Managed>) -> Managed {
        let Self { kind, request, .. } = self;
        let is_empty = object["metadata"]["managedFields"] == json!([]);
        let given = owners::take_given(object, kind, request);
        if let Some(managed) = applied {
            return managed;
        }
        let owners = match given {
            GivenOwners::Reset if is_empty => return Managed::default(),
            GivenOwners::Owners(owners) => owners::known(&self.state.objects, owners, kind),
            _ => Some(Managed::default()),
        };
        let nothing = managed::nothing(&kind.api_version(), &kind.kind, kind.zero());
        let writer = writer(kind, request);
        owners.map_or_else(Managed::default, |mut owners| {
            owners.update(&nothing, object, kind.schema(), &writer, self.now.as_second());
            owners
        })
    }

    /// Replaces the fields that the path may change.
    fn replace(mut self, replacement: Replacement) -> Result<Outcome, Refusal> {
        self.check_preconditions(&replacement)?;
        let Self { kind, request, now, .. } = self;
        let Replacement { stored, mut object, applied, .. } = replacement;
        let name = request.target.name.as_str();
        let mut live = render(kind, &stored);
        let fixed = checks::fixed_metadata(&live, &object);
        let given = owners::take_given(&mut object, kind, request);
        let old_owners = Managed::of(&live);
        let raw_owners = metadata_mut(&mut live).remove("managedFields");
        let omitted = ["deletionTimestamp", "deletionGracePeriodSeconds"];
        let omitted = omitted.into_iter().filter(|field| !metadata_mut(&mut object).contains_key(*field));
        let omitted: Vec<String> = omitted.map(|field| format!("metadata.{field}")).collect();
        restore_server_fields(&mut object, &live);
        keep_fields(&mut object, &live, kind, request);
        escalation::check(self.state, kind, request, Some(&live), &object)?;
        if !fixed.is_empty() {
            return Err(Refusal::invalid(&kind.kind, &kind.group, name, &fixed));
        }
        defaults::follow(&mut object, &live, kind);
        admission::shape(&mut object, kind);
        admission::check(self.state, kind, &object, Some(&live), &request.target.subresource)?;
        if kind.has_approval() {
            certificates::authorize(self.state, kind, request, &live, &object)?;
        }
        self.warnings.extend(admission::warnings(&self.state.options, kind, &object, Some(&live)));
        if kind.has_generation && spec_differs(&live, &object, kind) {
            metadata_mut(&mut object).insert("generation".into(), json!(stored.generation + 1));
        }
        let before = Before { live: &live, owners: &old_owners, omitted: &omitted };
        let mut managed = applied.unwrap_or_else(|| self.updated_owners(given, &before, &object));
        managed.sort();
        owners::check(&managed, kind, name)?;
        admission::assign(&mut self.state.addresses, &mut object, kind, Some(&live));
        if kind.has_approval() {
            certificates::set_times(&mut object, &live, now);
        }
        // A new time alone is no change.
        let is_unchanged = object == live && managed.equals_but_for_times(&old_owners);
        if is_unchanged {
            put(metadata_mut(&mut object), "managedFields", raw_owners);
        } else {
            managed.put(&mut object);
        }
        Ok(self.finish_replace(&stored, object, is_unchanged))
    }

    fn check_preconditions(&self, replacement: &Replacement) -> Result<(), Refusal> {
        let Replacement { stored, object, unconditional, checks_uid, .. } = replacement;
        let (kind, name) = (self.kind, self.request.target.name.as_str());
        let uid = stored.uid.to_string();
        if let Some(given) = meta::text(object, "uid").filter(|given| *given != uid && *checks_uid) {
            return Err(Refusal::other_uid(kind, stored.namespace(), name, given, &uid));
        }
        match meta::text(object, "resourceVersion").unwrap_or_default() {
            "" | "0" if *unconditional => Ok(()),
            "" | "0" => {
                let cause =
                    Cause::invalid("metadata.resourceVersion", &json!(0), "must be specified for an update");
                Err(Refusal::invalid(&kind.plural, &kind.group, name, &[cause]))
            }
            given if given == stored.revision.to_string() => Ok(()),
            given => readable_revision(given).and(Err(Refusal::modified(kind, name))),
        }
    }

    fn updated_owners(&self, given: GivenOwners, before: &Before<'_>, object: &Value) -> Managed {
        let Self { kind, request, .. } = self;
        // /scale does not own unowned replicas.
        let scaled = kind.scale.as_ref().map(|scale| scale.spec.as_str());
        let scaled = scaled.filter(|_| request.target.subresource == "scale");
        let owners = match given {
            GivenOwners::Owners(owners) => owners,
            GivenOwners::Reset => Managed::default(),
            GivenOwners::Nothing => before.owners.clone(),
        };
        // Unowned objects stay so until applied.
        if owners.0.is_empty() || scaled.is_some_and(|path| !owners.owns(path)) {
            return owners;
        }
        let Some(mut managed) = owners::known(&self.state.objects, owners, kind) else {
            return Managed::default();
        };
        let writer = writer(kind, request);
        managed.update(before.live, object, kind.schema(), &writer, self.now.as_second());
        for path in before.omitted {
            managed.release(path);
        }
        // Scales omit zero replicas, leaving no owner.
        let is_zero =
            |path: &&str| object.pointer(&format!("/{}", path.replace('.', "/"))) == Some(&json!(0));
        if let Some(path) = scaled.filter(is_zero) {
            managed.release(path);
        }
        managed
    }

    /// Stores the object, or removes it with its last finalizer.
    fn finish_replace(self, stored: &Arc<Stored>, mut object: Value, is_unchanged: bool) -> Outcome {
        let Self { state, kind, request, dry_run, now, warnings } = self;
        if dry_run {
            return answer_object(kind, object, 200, warnings);
        }
        let is_finalized =
            meta::text(&object, "deletionTimestamp").is_some() && meta::finalizers(&object).is_empty();
        let has_content =
            || kind.is("", "namespaces") && state.objects.content(stored.name()).next().is_some();
        if is_finalized && !has_content() {
            state.remove(&Key::of(kind, &request.target.namespace, &request.target.name));
            return answer_object(kind, object, 200, warnings);
        }
        if is_unchanged {
            return answer_with(kind, stored, 200, warnings);
        }
        definitions::convert_to_stored(&state.objects, &state.served, kind, &mut object);
        let stored = state.store(kind, object, now);
        answer_with(kind, &stored, 200, warnings)
    }
}

fn readable_revision(given: &str) -> Result<(), Refusal> {
    if given.is_empty() || given.parse::<u64>().is_ok() {
        return Ok(());
    }
    let given = Value::from(given);
    Err(Refusal::new(500, "", format!("strconv.ParseUint: parsing {given}: invalid syntax")))
}
