//! One file as a module in its own runtime: webhooks of real modules reject other modules' objects.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::{join, try_join};
use jiff::Timestamp;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams},
};
use serde_json::json;
use tidewatch_api::{Kyma, Manifest, State};
use tokio::time::Instant;

use super::{
    File, Stage,
    kubectl::{self, Kubectl},
    normal::{self, Objects},
    report::{Check, Row, seconds},
    serves,
};
use crate::{
    ControlPlane, Options, User,
    fleet::{self, AGENT_USER, Agent, Member, Receiver},
    idle::writes_of_engine,
    observed,
    report::{Line, Reporter},
    snapshot::Snapshot,
    story, wait,
};

/// Timeout of installation and of removal.
const LONG: Duration = Duration::from_mins(2);
/// Timeout of controllers in both clusters.
const EQUAL: Duration = Duration::from_secs(30);
/// Engine log texts about changed objects.
const DRIFT: [&str; 2] = ["to what its module says", "to what it is to be"];

pub(super) struct Module<'a> {
    stage: &'a Stage<'a>,
    file: &'a File,
    runtime: ControlPlane,
    client: Client,
    kubectl: Kubectl,
    /// The runtime before installation.
    before: Snapshot,
    /// The module's objects at the start of the observation.
    specified: Objects,
    pub(super) row: Row,
    // The agent runs until it is dropped.
    _agent: Agent,
}

impl<'a> Module<'a> {
    /// Applies the file with kubectl in one control plane and installs it with the engine in another, then
    /// compares.
    pub(super) async fn install(
        stage: &'a Stage<'a>,
        receiver: &Receiver,
        file: &'a File,
        reporter: &dyn Reporter,
    ) -> Result<Self> {
        reporter.working(&format!("{}: starting two control planes", file.name()));
        let (runtime, other) = try_join(start(stage, file, "corpus"), start(stage, file, "kubectl")).await?;
        let client = runtime.client()?;
        let member = Member { cluster: &runtime, kyma: &file.module, id: &file.module };
        let kcp = stage.kcp.client()?;
        fleet::register(&kcp, stage.namespace, &member).await?;
        fleet::kyma_in_state(&kcp, stage.namespace, &file.module, State::Ready).await?;
        let agent = Agent::start(stage.harness, receiver, &member).await?;
        kubectl::prepare(&runtime, file).await?;
        kubectl::prepare(&other, file).await?;
        // The catalog is written beside the Kyma.
        fleet::at_rest(receiver).await?;
        let mut module = Self {
            stage,
            file,
            before: Snapshot::take(&client).await?,
            kubectl: Kubectl::new(stage.harness, &runtime)?,
            runtime,
            client,
            specified: Objects::new(),
            row: Row { file: file.name(), objects: file.objects.len(), ..Row::default() },
            _agent: agent,
        };
        module.compare(&other, reporter).await?;
        Ok(module)
    }

    async fn compare(&mut self, other: &ControlPlane, reporter: &dyn Reporter) -> Result<()> {
        let name = self.file.name();
        let theirs = Kubectl::new(self.stage.harness, other)?;
        reporter.working(&format!("{name}: kubectl applies it in one of them"));
        let applied = theirs.apply(&self.file.path).await;
        self.row.kubectl_seconds = applied.as_ref().ok().map(|took| seconds(*took));
        reporter.working(&format!("{name}: the module is enabled in the other one"));
        let began = Instant::now();
        story::set_modules(&self.client, &json!([{"name": self.file.module}])).await?;
        self.row.ready = self.ready(began).await;
        let what = match self.row.ready_seconds {
            Some(_) => format!("{name}: Ready, or rightly not"),
            None => format!("{name}: neither Ready nor rightly not"),
        };
        reporter.done(Line { what, took: began.elapsed(), seq: None });
        reporter.working(&format!("{name}: comparing with what kubectl has made"));
        self.row.equal = match (self.equal(&theirs).await, applied) {
            (Ok(()), Ok(_)) => Check::of(Vec::new()),
            (Ok(()), Err(error)) => {
                Check::Passed { note: Some(format!("kubectl is refused some of it: {error:#}")) }
            }
            (Err(differences), _) => differences,
        };
        Ok(())
    }

    /// Waits until the module is Ready or correctly not Ready.
    async fn ready(&mut self, began: Instant) -> Check {
        let kymas: Api<Kyma> = match self.stage.kcp.client() {
            Ok(kcp) => Api::namespaced(kcp, self.stage.namespace),
            Err(error) => return Check::failed(format!("{error:#}")),
        };
        let judged = wait::until("the module to be Ready, or rightly not", LONG, || async {
            let kyma = kymas.get(&self.file.module).await?;
            let status = kyma.module_status(&self.file.module).context("its Kyma does not speak of it")?;
            let took = began.elapsed();
            let objects = self.kubectl.objects(&self.file.path).await?;
            let judged = serves::judge(status.state, &status.message, &objects);
            Ok(Some((took, judged.map_err(anyhow::Error::msg)?)))
        });
        match judged.await {
            Ok((took, note)) => {
                self.row.ready_seconds = Some(seconds(took));
                Check::Passed { note }
            }
            Err(error) => Check::failed(format!("{error:#}")),
        }
    }

    /// Waits until the module's objects equal kubectl's.
    async fn equal(&self, theirs: &Kubectl) -> Result<(), Check> {
        let began = Instant::now();
        loop {
            let path = &self.file.path;
            let why = match join(self.kubectl.objects(path), theirs.objects(path)).await {
                (Ok(ours), Ok(theirs)) => normal::differences(&ours, &theirs),
                (Err(error), _) | (_, Err(error)) => vec![format!("{error:#}")],
            };
            if why.is_empty() {
                return Ok(());
            }
            if began.elapsed() >= EQUAL {
                return Err(Check::of(why));
            }
            wait::pause().await;
        }
    }

    /// Triggers a first reconcile after a receiver restart; it inspects every object.
    pub(super) async fn look(&self, receiver: &Receiver) -> Result<()> {
        let manifests: Api<Manifest> = Api::namespaced(self.stage.kcp.client()?, self.stage.namespace);
        let all = manifests.list(&self.own_manifests()).await?.items;
        let status =
            all.first().and_then(|manifest| manifest.status.as_ref()).context("there is no Manifest")?;
        let object = status.synced.first().context("nothing is installed")?;
        let member = Member { cluster: &self.runtime, kyma: &self.file.module, id: &self.file.module };
        let gvk = (object.group.as_str(), object.version.as_str(), object.kind.as_str());
        receiver.tell(self.stage.harness, &member, gvk, &object.namespace, &object.name).await?;
        let what = format!("a look at {} after the restart", self.file.module);
        wait::until(&what, LONG, || async {
            let page = receiver.runtime(&self.file.module).await?;
            let mut keys =
                page["reconciles"].as_array().into_iter().flatten().filter_map(|r| r["key"].as_str());
            Ok(keys.any(|key| key.starts_with("Manifest/")).then_some(()))
        })
        .await
    }

    fn own_manifests(&self) -> ListParams {
        ListParams::default().labels(&format!("operator.kyma-project.io/kyma-name={}", self.file.module))
    }

    /// Checks that the engine wrote nothing since then and logged no drift. `why` holds further findings.
    pub(super) fn check_quiet(
        &mut self,
        receiver: &Receiver,
        since: Timestamp,
        mut why: Vec<String>,
    ) -> Result<()> {
        why.extend(self.writes(since)?);
        let name = format!("\"{}\"", self.file.module);
        let log = observed::text(&receiver.process)?;
        let drift =
            log.lines().filter(|line| DRIFT.iter().any(|words| line.contains(words)) && line.contains(&name));
        why.extend(drift.map(str::to_owned));
        self.row.quiet = Check::of(why);
        Ok(())
    }

    fn writes(&self, since: Timestamp) -> Result<impl Iterator<Item = String>> {
        let writes = writes_of_engine(self.stage.harness, self.runtime.name(), since)?;
        Ok(writes.into_iter().map(|write| format!("the engine has written: {write}")))
    }

    /// Records the module's objects.
    pub(super) async fn begin_watch(&mut self) {
        self.specified =
            self.kubectl.objects(&self.file.path).await.map(|o| normal::specified(&o)).unwrap_or_default();
    }

    /// Checks that no object changed since the record and that the engine wrote nothing.
    pub(super) async fn check_no_fight(&mut self, since: Timestamp) -> Result<()> {
        let mut why: Vec<String> = self.writes(since)?.collect();
        match self.kubectl.objects(&self.file.path).await {
            Ok(objects) => why.extend(normal::changes(&self.specified, &normal::specified(&objects))),
            Err(error) => why.push(format!("{error:#}")),
        }
        self.row.no_fight = Check::of(why);
        Ok(())
    }

    /// Disables the module and waits for the initial state.
    pub(super) async fn remove(&mut self) -> Result<()> {
        story::set_modules(&self.client, &json!([])).await?;
        let manifests: Api<Manifest> = Api::namespaced(self.stage.kcp.client()?, self.stage.namespace);
        let own = self.own_manifests();
        let gone = wait::until("its Manifest to go, and nothing else to be left or lost", LONG, || async {
            let left = manifests.list(&own).await?.items;
            ensure!(
                left.is_empty(),
                "there is a Manifest: {:?}",
                left[0].status.as_ref().map(|s| &s.last_operation)
            );
            let now = Snapshot::take(&self.client).await?;
            let (left, lost) = (self.before.added(&now), now.added(&self.before));
            ensure!(left.is_empty() && lost.is_empty(), "left: {left:?}, lost: {lost:?}");
            Ok(Some(()))
        });
        self.row.removed =
            gone.await.map_or_else(|error| Check::failed(format!("{error:#}")), |()| Check::of(Vec::new()));
        // Deletes the Kyma, or the receiver would miss the runtime.
        let kymas: Api<Kyma> = Api::namespaced(self.stage.kcp.client()?, self.stage.namespace);
        kymas.delete(&self.file.module, &DeleteParams::default()).await?;
        let gone = || async { Ok(kymas.get_opt(&self.file.module).await?.is_none().then_some(())) };
        wait::until("the Kyma to go", LONG, gone).await
    }
}

async fn start(stage: &Stage<'_>, file: &File, what: &str) -> Result<ControlPlane> {
    let name = format!("{what}-{}", file.module);
    let users = vec![User { name: AGENT_USER.to_owned(), groups: Vec::new() }];
    let options = Options { pods: true, users, ..Options::named(&name) };
    // Boxed: its future is large.
    Box::pin(ControlPlane::start(stage.harness, stage.etcd, options)).await
}
