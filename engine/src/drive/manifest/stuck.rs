//! Objects whose namespace is being deleted: they are left out, and the others go on.

use std::collections::BTreeSet;

use kube::ResourceExt;
use tidewatch_api::{Manifest, ManifestStatus, State};

use super::apply::Applied;
use crate::{
    drive::{Finish, Lost, Shared, apply, gate::Gated},
    key::Report,
    plan::{
        manifest::Progress,
        namespace::stuck,
        object::{Gvk, ObjectRef},
    },
    stages::{Stage, stage},
};

/// Namespaces of one module that are looked at.
const NAMESPACES: usize = 4;

impl Shared {
    /// Ends a reconcile that has left objects out. Their namespace's end is an event only where the agent watches it, so this looks
    /// again, soon at first and then seldom.
    pub(super) async fn left_out(
        &self,
        manifest: &Manifest,
        runtime: &Gated,
        applied: &Applied,
        write: impl Fn(Progress) -> ManifestStatus + Send,
    ) -> Result<Finish, Lost> {
        let (mut told, mut for_long) = (Vec::new(), false);
        let namespaces: BTreeSet<&str> =
            applied.stuck.iter().map(|object| object.namespace.as_str()).collect();
        for name in namespaces.into_iter().take(NAMESPACES) {
            let id = ObjectRef {
                gvk: Gvk::of("v1", "Namespace"),
                namespace: String::new(),
                name: name.to_owned(),
            };
            // One that cannot be read is told of by its name.
            let live = stage(Stage::ReadRuntime, apply::get(runtime, &id)).await.ok().flatten();
            let found = live.and_then(|live| stuck(name, &live, self.now()));
            for_long |= found.as_ref().is_some_and(|found| found.for_long);
            told.push(
                found.map_or_else(|| format!("namespace {name} was being deleted"), |found| found.message),
            );
        }
        let objects = match applied.stuck.as_slice() {
            [one] => format!("{one} waits for its end"),
            [first, ..] => format!("{first} and {} more objects wait for its end", applied.stuck.len() - 1),
            [] => String::new(),
        };
        let message = format!("{}; {objects}; everything else goes on", told.join("; "));
        if for_long {
            let report = Report { state: State::Warning, message: message.clone() };
            let status = write(Progress::Failed { state: report.state, message: report.message });
            self.write_manifest_status(manifest, &status).await?;
        } else {
            self.say(manifest, &write(Progress::Waiting(message.clone())), false).await?;
        }
        tracing::debug!(manifest = manifest.name_any(), message, "objects were left out");
        Ok(Finish::Patient(message))
    }
}
