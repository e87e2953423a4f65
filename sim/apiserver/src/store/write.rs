//! create, update, patch and apply.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    cluster::Cluster,
    decode::{decode, decode_applied, decode_patched, keep_servers, place, strip_servers},
    options::of_write,
    owners::{owners_checked, said_managed},
    refusal::Refusal,
    request::{Answer, Outcome, PatchKind, Request, Target, Verb},
    rules::{dry_answer, patched, spec_differs, through, typed, writer},
};
use crate::{
    authz::Ask,
    fields::{
        apply::Apply,
        managed::{self, Managed},
        said::Said,
    },
    kinds::{Kind, checks, defaults},
    object::{
        Stored,
        meta::{self, metadata_mut, put},
        stored,
    },
    schema::validate::Cause,
};

struct Change<'a> {
    kind: &'a Arc<Kind>,
    request: &'a Request,
    now: Timestamp,
    warnings: Vec<String>,
    /// Ownership computed by an apply.
    managed: Option<Managed>,
    /// Whether to accept a missing resourceVersion.
    unconditional: bool,
    /// Whether to check the uid.
    whole: bool,
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
        let dry = of_write(&request.verb, &request.query)?;
        let object = decode(body, kind, &request.query, &mut warnings)?;
        let revision = meta::text(&object, "resourceVersion").unwrap_or_default();
        if !matches!(revision, "" | "0") && !dry {
            return Err(Refusal::new(500, "", "resourceVersion should not be set on objects to be created"));
        }
        self.insert(kind, request, object, None, warnings, dry, now)
    }

    /// For create and apply.
    #[expect(clippy::too_many_arguments, reason = "what a create and an apply have in common")]
    fn insert(
        &mut self,
        kind: &Arc<Kind>,
        request: &Request,
        mut object: Value,
        applied: Option<Managed>,
        mut warnings: Vec<String>,
        dry: bool,
        now: Timestamp,
    ) -> Result<Outcome, Refusal> {
        if matches!(request.verb, Verb::Create(_)) && self.is_ending(kind) {
            let why = "create not allowed while custom resource definition is terminating";
            return Err(Refusal::forbidden(&kind.plural, &kind.group, meta::name(&object), why));
        }
        place(&mut object, kind, &request.target)?;
        let revision = meta::text(&object, "resourceVersion").map(str::to_owned);
        strip_servers(&mut object);
        self.admit(kind, &object, &request.target)?;
        if meta::text(&object, "name").is_none()
            && let Some(prefix) = meta::text(&object, "generateName").map(str::to_owned)
        {
            let name = self.generated(&prefix);
            metadata_mut(&mut object).insert("name".into(), name.into());
        }
        let name = meta::name(&object).to_owned();
        self.confirm(kind, request, None, &object)?;
        if kind.has_status && !kind.is("apiextensions.k8s.io", "customresourcedefinitions") {
            meta::as_object(&mut object).remove("status");
        }
        Self::shape(&mut object, kind);
        self.check(kind, &object, None)?;
        warnings.extend(self.warned(kind, &object, None));
        let key = Self::key(kind, &request.target.namespace, &name);
        if let Some(there) = self.objects.get(&key) {
            return Err(Refusal::exists(kind, &name, there.is_deleted()));
        }
        // Creating by apply or update needs `create`.
        if !matches!(request.verb, Verb::Create(_)) && !request.user.may_all() {
            self.authorize(&request.user, &Ask::of("create", &request.target, &request.query))?;
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
        let none_given = object["metadata"]["managedFields"] == json!([]);
        let said = said_managed(&mut object, kind, request, kind.is_builtin());
        let mut managed = match (applied, said) {
            (Some(managed), _) => managed,
            (None, Said::Reset) if none_given => Managed::default(),
            (None, said) => {
                let owners = match said {
                    Said::Owners(owners) => self.known(owners, kind),
                    _ => Some(Managed::default()),
                };
                let nothing = managed::nothing(&kind.api_version(), &kind.kind, kind.zero());
                owners.map_or_else(Managed::default, |mut owners| {
                    owners.update(&nothing, &object, kind.schema(), &writer(kind, request), now.as_second());
                    owners
                })
            }
        };
        managed.sort();
        owners_checked(&managed, kind, &name)?;
        managed.put(&mut object);
        self.assign(&mut object, kind, None);
        if dry {
            // Echoed, since nothing is stored.
            if let Some(revision) = revision.filter(|_| matches!(request.verb, Verb::Create(_))) {
                metadata_mut(&mut object).insert("resourceVersion".into(), revision.into());
            }
            return Ok(dry_answer(kind, object, 201, warnings));
        }
        self.as_stored(kind, &mut object);
        let stored = self.store(kind, object, now);
        Ok(Self::answer_with(kind, &stored, 201, warnings))
    }

    /// Checks the namespace.
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

    pub(super) fn update(
        &mut self,
        kind: &Arc<Kind>,
        request: &Request,
        body: Value,
        now: Timestamp,
    ) -> Result<Outcome, Refusal> {
        let dry = of_write(&request.verb, &request.query)?;
        if request.target.subresource == "scale" {
            return self.put_scale(kind, request, body, dry, now);
        }
        let mut warnings = Vec::new();
        let mut object = decode(body, kind, &request.query, &mut warnings)?;
        if meta::name(&object).is_empty() {
            return Err(Refusal::nameless(&request.target.name));
        }
        place(&mut object, kind, &request.target)?;
        let stored = match self.lookup(kind, &request.target.namespace, &request.target.name) {
            Err(_) if kind.is_created_by_update() && request.target.subresource.is_empty() => {
                return self.insert(kind, request, object, None, warnings, dry, now);
            }
            found => found?,
        };
        let unconditional = kind.is_builtin()
            && !matches!(
                kind.plural.as_str(),
                "customresourcedefinitions" | "leases" | "poddisruptionbudgets" | "apiservices"
            );
        let change = Change { kind, request, now, warnings, managed: None, unconditional, whole: true };
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
        let dry = of_write(&request.verb, &request.query)?;
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
            return self.patch_scale(kind, request, how, patch, dry, now);
        }
        self.patch_object(kind, request, how, patch, dry, now)
    }

    pub(super) fn patch_object(
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
        let mut object = decode_patched(patched, kind, &request.query, &mut warnings)?;
        if meta::name(&object).is_empty() {
            return Err(Refusal::nameless(&request.target.name));
        }
        place(&mut object, kind, &request.target)?;
        let change =
            Change { kind, request, now, warnings, managed: None, unconditional: true, whole: false };
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
        if request.target.subresource == "scale" {
            return Err(Refusal::not_simulated("server-side apply of /scale"));
        }
        let mut warnings = Vec::new();
        typed(config, kind)?;
        let said = config;
        let mut config = decode_applied(said.clone(), kind, &request.query, &mut warnings)?;
        metadata_mut(&mut config).remove("managedFields");
        let writer = writer(kind, request);
        let force = request.query.force == Some(true);
        let apply = Apply { writer: &writer, said, force, now: now.as_second() };
        let conflict = |conflicts: Vec<_>| Refusal::apply_conflict(&conflicts);
        let key = Self::key(kind, &request.target.namespace, &request.target.name);
        let Some(stored) = self.objects.get(&key).cloned() else {
            if !request.target.subresource.is_empty() {
                return Err(Refusal::not_found(kind, &request.target.name));
            }
            if meta::name(&config).is_empty() {
                return Err(Refusal::nameless(&request.target.name));
            }
            readable_revision(meta::text(&config, "resourceVersion").unwrap_or_default())?;
            if let Some(uid) = meta::text(&config, "uid") {
                return Err(Refusal::gone_uid(kind, &request.target.name, uid));
            }
            strip_servers(&mut config);
            let nothing = managed::nothing(&kind.api_version(), &kind.kind, Value::Null);
            let applied =
                apply.run(&nothing, &config, &Managed::default(), kind.schema()).map_err(conflict)?;
            return self.insert(kind, request, applied.object, Some(applied.managed), warnings, dry, now);
        };
        let mut live = Self::render(kind, &stored);
        let Some(mut managed) = self.known(Managed::of(&live), kind) else {
            return Err(Refusal::not_simulated("an apply where fields are owned by a version that is gone"));
        };
        metadata_mut(&mut live).remove("managedFields");
        let nothing = managed::nothing(&kind.api_version(), &kind.kind, kind.zero());
        managed.adopt(&nothing, &live, kind.schema(), &writer, now.as_second());
        let applied = apply.run(&live, &config, &managed, kind.schema()).map_err(conflict)?;
        // Missing: the target's name; empty: refused.
        if said.pointer("/metadata/name").is_some() && meta::name(&config).is_empty() {
            return Err(Refusal::nameless(&request.target.name));
        }
        place(&mut config, kind, &request.target)?;
        let change = Change {
            kind,
            request,
            now,
            warnings,
            managed: Some(applied.managed),
            unconditional: true,
            whole: false,
        };
        self.replace(change, &stored, applied.object, dry)
    }

    /// Replaces the fields that the path may change.
    fn replace(
        &mut self,
        change: Change<'_>,
        stored: &Arc<Stored>,
        mut object: Value,
        dry: bool,
    ) -> Result<Outcome, Refusal> {
        let Change { kind, request, now, mut warnings, managed: applied, unconditional, whole } = change;
        let name = request.target.name.as_str();
        let mut live = Self::render(kind, stored);
        let uid = stored.uid.to_string();
        if let Some(given) = meta::text(&object, "uid").filter(|given| *given != uid && whole) {
            return Err(Refusal::other_uid(kind, stored.namespace(), name, given, &uid));
        }
        let given = meta::text(&object, "resourceVersion").unwrap_or_default().to_owned();
        match given.as_str() {
            "" | "0" if unconditional => {}
            "" | "0" => {
                let cause =
                    Cause::invalid("metadata.resourceVersion", &json!(0), "must be specified for an update");
                return Err(Refusal::invalid(&kind.plural, &kind.group, name, &[cause]));
            }
            given if given == stored.revision.to_string() => {}
            given => {
                readable_revision(given)?;
                return Err(Refusal::modified(kind, name));
            }
        }
        let fixed = checks::fixed_metadata(&live, &object);
        // For custom resources, empty means absent.
        let said = said_managed(&mut object, kind, request, kind.is_builtin());
        let old_managed = Managed::of(&live);
        let raw_managed = metadata_mut(&mut live).remove("managedFields");
        // Omitting these removes their owners, not their values.
        let silent = ["deletionTimestamp", "deletionGracePeriodSeconds"];
        let silent = silent.into_iter().filter(|field| !metadata_mut(&mut object).contains_key(*field));
        let silent: Vec<String> = silent.map(|field| format!("metadata.{field}")).collect();
        keep_servers(&mut object, &live);
        through(&mut object, &live, kind, request);
        self.confirm(kind, request, Some(&live), &object)?;
        if !fixed.is_empty() {
            return Err(Refusal::invalid(&kind.kind, &kind.group, name, &fixed));
        }
        defaults::follow(&mut object, &live, kind);
        Self::shape(&mut object, kind);
        self.check(kind, &object, Some(&live))?;
        warnings.extend(self.warned(kind, &object, Some(&live)));
        let bumped = kind.has_generation && spec_differs(&live, &object, kind);
        if bumped {
            let generation = stored.generation + 1;
            metadata_mut(&mut object).insert("generation".into(), json!(generation));
        }
        let writer = writer(kind, request);
        // /scale does not own unowned replicas.
        let scaled = kind.scale.as_ref().map(|scale| scale.spec.as_str());
        let scaled = scaled.filter(|_| request.target.subresource == "scale");
        let owners = match said {
            Said::Owners(owners) => owners,
            Said::Reset => Managed::default(),
            Said::Nothing => old_managed.clone(),
        };
        let mut managed = match applied {
            Some(managed) => managed,
            // Unowned objects stay so until applied.
            None if owners.0.is_empty() => owners,
            None if scaled.is_some_and(|path| !owners.owns(path)) => owners,
            None => self.known(owners, kind).map_or_else(Managed::default, |mut managed| {
                managed.update(&live, &object, kind.schema(), &writer, now.as_second());
                for path in &silent {
                    managed.release(path);
                }
                // Scales omit zero replicas, leaving no owner.
                let none =
                    |path: &&str| object.pointer(&format!("/{}", path.replace('.', "/"))) == Some(&json!(0));
                if let Some(path) = scaled.filter(none) {
                    managed.release(path);
                }
                managed
            }),
        };
        managed.sort();
        owners_checked(&managed, kind, name)?;
        self.assign(&mut object, kind, Some(&live));
        let same_owners = |a: &Managed, b: &Managed| {
            a.0.len() == b.0.len()
                && a.0.iter().zip(&b.0).all(|(a, b)| {
                    (&a.set, &a.manager, a.applies, &a.subresource, &a.api_version)
                        == (&b.set, &b.manager, b.applies, &b.subresource, &b.api_version)
                })
        };
        // A new time alone is no change.
        let unchanged = object == live && same_owners(&managed, &old_managed);
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
            self.remove(&key);
            return Ok(Outcome::Object(Answer { code: 200, object, warnings, kind: Some(Arc::clone(kind)) }));
        }
        if unchanged {
            return Ok(Self::answer_with(kind, stored, 200, warnings));
        }
        self.as_stored(kind, &mut object);
        let stored = self.store(kind, object, now);
        Ok(Self::answer_with(kind, &stored, 200, warnings))
    }
}

fn readable_revision(given: &str) -> Result<(), Refusal> {
    if given.is_empty() || given.parse::<u64>().is_ok() {
        return Ok(());
    }
    let given = Value::from(given);
    Err(Refusal::new(500, "", format!("strconv.ParseUint: parsing {given}: invalid syntax")))
}
