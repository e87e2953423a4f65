//! Simulated clusters and registry, with direct access.

use std::{collections::BTreeSet, fs, io, path::Path, sync::Arc};

use anyhow::{Context, Result, anyhow};
use jiff::{SignedDuration, Timestamp};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tidewatch_api::{
    ModuleTemplate,
    names::{API_VERSION, CA_SECRET, KCP_NAMESPACE, ROTATE_CA, annotations, labels},
};
use tidewatch_certs::Ca;
use tidewatch_demo::{files::write_private, fleet, simulated};
use tidewatch_drain::Drain;
use tidewatch_fake_apiserver::{
    Hosted, Options, Outcome, PatchKind, Query, Request, Server, ServerOptions, Target, Token, User, Verb,
    registry::Registry,
    script::{Script, Tally},
};
use tidewatch_oci::{ModulePackage, RegistryConfig};

use crate::{
    modules::{self, Id, Size},
    names, role,
    scenario::Channel,
};

/// Length of KCP's log, enough for a slow list.
const KCP_LOG: usize = 65_536;
const KCP_OBJECTS: usize = 4_000_000;
const READY_AFTER: SignedDuration = SignedDuration::from_millis(500);
const USER: &str = "somebody";

/// The simulated clusters and registry.
pub struct Fleet {
    /// API servers.
    pub server: Server,
    /// Module registry.
    pub registry: Registry,
    /// KCP.
    pub kcp: Arc<Hosted>,
    /// By number.
    pub runtimes: Vec<Arc<Hosted>>,
    /// Active faults.
    pub script: Arc<Script>,
    /// Counts of calls.
    pub tally: Arc<Tally>,
    /// The receiver's kubeconfig.
    pub kcp_kubeconfig: String,
    /// Size of each runtime.
    pub size: Size,
    /// Prefix of tokens.
    pub secret: String,
    user: Arc<User>,
}

impl Fleet {
    /// Starts KCP with modules, and unregistered runtimes.
    pub async fn start(runtimes: usize, size: Size, seed: u64, drain: &Drain) -> Result<Self> {
        let script = Arc::new(Script::new(seed));
        let faults = Arc::clone(&script) as _;
        let tally = Arc::new(Tally::new(faults, vec![names::KCP.to_owned()]));
        let faults = Arc::clone(&tally) as _;
        let server = Server::start(ServerOptions { faults, ..ServerOptions::default() }, drain).await?;
        let registry = Registry::start(drain).await?;
        let secret = uuid::Uuid::new_v4().to_string();
        let admin = |name: &str| User { groups: Vec::new(), ..User::admin(name) };

        let options = Options {
            seed,
            log_limit: KCP_LOG,
            max_objects: KCP_OBJECTS,
            ignore_cel: true,
            ..Options::default()
        };
        let kcp = server.add(names::KCP, options)?;
        // The engine refuses runtimes at KCP's address.
        let kcp_url = format!("https://{}", server.listen(names::KCP).await?);
        kcp.allow_token(Token(secret.clone()), admin(names::RECEIVER_USER));
        let kcp_kubeconfig = server.kubeconfig_for(names::KCP, &kcp_url, &secret);

        let mut all = Vec::with_capacity(runtimes);
        for runtime in 0..runtimes {
            let options = Options {
                seed: seed.wrapping_mul(1_000_003).wrapping_add(runtime as u64 + 1),
                ready_after: Some(READY_AFTER),
                ignore_cel: true,
                ..Options::default()
            };
            let hosted = server.add(&names::kyma(runtime), options)?;
            hosted.allow_token(Token(secret.clone()), admin(names::RECEIVER_USER));
            hosted.allow_token(Token(names::agent_token(&secret, runtime)), simulated::agent_user());
            all.push(hosted);
        }
        let user = Arc::new(admin(USER));
        let fleet =
            Self { server, registry, kcp, runtimes: all, script, tally, kcp_kubeconfig, size, secret, user };
        fleet.prepare_kcp().await?;
        Ok(fleet)
    }

    /// Gives agents their rights, where the engine does not install them.
    pub fn admit_agents(&self) -> Result<()> {
        let needed = role::objects(fleet::AGENT_ROLE)?;
        for hosted in &self.runtimes {
            for (id, object) in &needed {
                self.apply(hosted, id, object.clone())?;
            }
        }
        Ok(())
    }

    /// Requests a rotation of the CA, as `tidewatch certs rotate` does.
    pub fn request_rotation(&self) -> Result<()> {
        let now = Timestamp::now().round(jiff::Unit::Second)?.to_string();
        let patch = json!({"metadata": {"annotations": {ROTATE_CA: now}}});
        self.ask(&self.kcp, &secret(CA_SECRET), Verb::Patch(PatchKind::Merge, patch)).map(drop)
    }

    async fn kcp_client(&self) -> Result<Client> {
        let config = Kubeconfig::from_yaml(&self.kcp_kubeconfig)?;
        let mut config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
        config.proxy_url = None;
        Ok(Client::try_from(config)?)
    }

    /// The CA that the receiver keeps in KCP.
    pub async fn event_ca(&self) -> Result<Ca> {
        fleet::kept_ca(&self.kcp_client().await?, KCP_NAMESPACE).await
    }

    async fn prepare_kcp(&self) -> Result<()> {
        fleet::prepare_kcp(&self.kcp_client().await?, KCP_NAMESPACE).await?;
        for module in 0..self.size.modules {
            for version in [1, 2] {
                self.offer(module, version).await?;
            }
            self.release(module, [(Channel::Regular, 1), (Channel::Fast, 2)])?;
        }
        Ok(())
    }

    /// Publishes a module version.
    pub async fn offer(&self, module: usize, number: u32) -> Result<()> {
        let (name, version) = (modules::name(module), modules::version(number));
        let (_, cr) = modules::default_cr(module);
        let package = ModulePackage {
            sources: Vec::new(),
            component_name: modules::component(module),
            version: version.clone(),
            raw_manifest: modules::raw_manifest(module, number, self.size.objects),
            default_cr: Some(cr.to_string()),
            images: vec![format!("example.local/{name}:{version}")],
        };
        let client = tidewatch_oci::Registry::new(RegistryConfig::default())?;
        tidewatch_oci::push(&client, &self.registry.host(), &package).await?;
        let body = json!({
            "apiVersion": API_VERSION, "kind": "ModuleTemplate",
            "metadata": {"name": ModuleTemplate::object_name(&name, &version), "namespace": KCP_NAMESPACE,
                         "labels": {labels::MODULE_NAME: name}},
            "spec": {"moduleName": name, "version": version, "descriptor": {}, "data": cr},
        });
        self.apply_kcp("moduletemplates", body)
    }

    /// Sets channel versions.
    pub fn release(&self, module: usize, channels: [(Channel, u32); 2]) -> Result<()> {
        let name = modules::name(module);
        let channels = channels
            .map(|(channel, number)| json!({"channel": channel.name(), "version": modules::version(number)}));
        let body = json!({
            "apiVersion": API_VERSION, "kind": "ModuleReleaseMeta",
            "metadata": {"name": name, "namespace": KCP_NAMESPACE},
            "spec": {"moduleName": name, "ocmComponentName": modules::component(module), "channels": channels},
        });
        self.apply_kcp("modulereleasemetas", body)
    }

    /// Registers a runtime with all modules.
    pub fn register(&self, runtime: usize) -> Result<()> {
        let kyma = names::kyma(runtime);
        let kubeconfig = self.runtime_kubeconfig(runtime);
        let object = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": format!("kubeconfig-{kyma}"), "namespace": KCP_NAMESPACE, "labels": {
                labels::KYMA_NAME: kyma, labels::MANAGED_BY: labels::MANAGED_BY_KCP}},
            "stringData": {"config": kubeconfig},
        });
        let modules: Vec<Value> =
            (0..self.size.modules).map(|module| json!({"name": modules::name(module)})).collect();
        let body = json!({
            "apiVersion": API_VERSION, "kind": "Kyma",
            "metadata": {"name": kyma, "namespace": KCP_NAMESPACE,
                "labels": {labels::RUNTIME_ID: names::id(runtime)},
                "annotations": {annotations::SKR_DOMAIN: fleet::domain(&kyma)}},
            "spec": {"channel": Channel::Regular.name(), "modules": modules},
        });
        self.apply(&self.kcp, &secret(&format!("kubeconfig-{kyma}")), object)?;
        self.apply_kcp("kymas", body)
    }

    /// The receiver's kubeconfig.
    pub fn runtime_kubeconfig(&self, runtime: usize) -> String {
        self.server.kubeconfig(&names::kyma(runtime), &self.secret)
    }

    /// Writes all kubeconfigs.
    pub fn write_kubeconfigs(&self, folder: &Path) -> Result<()> {
        write_private(&folder.join("kcp.kubeconfig"), &self.kcp_kubeconfig)?;
        let runtimes = folder.join("runtimes");
        remove_kubeconfigs(&runtimes)?;
        for runtime in 0..self.runtimes.len() {
            let file = runtimes.join(format!("{}.kubeconfig", names::kyma(runtime)));
            write_private(&file, &self.runtime_kubeconfig(runtime))?;
        }
        Ok(())
    }

    /// Cluster names of runtimes.
    pub fn clusters(runtimes: &[usize]) -> Arc<BTreeSet<String>> {
        Arc::new(runtimes.iter().map(|runtime| names::kyma(*runtime)).collect())
    }

    fn apply_kcp(&self, resource: &str, body: Value) -> Result<()> {
        let id = Id {
            group: "operator.kyma-project.io".into(),
            version: "v1beta2".into(),
            resource: resource.into(),
            namespace: KCP_NAMESPACE.into(),
            name: body["metadata"]["name"].as_str().unwrap_or_default().into(),
        };
        self.apply(&self.kcp, &id, body)
    }

    fn apply(&self, hosted: &Hosted, id: &Id, body: Value) -> Result<()> {
        self.ask(hosted, id, Verb::Patch(PatchKind::Apply, body)).map(drop)
    }

    /// Returns an object, if it exists.
    pub fn get(&self, hosted: &Hosted, id: &Id) -> Result<Option<Value>> {
        match self.outcome(hosted, id, Verb::Get) {
            Outcome::Object(answer) => Ok(Some(answer.object)),
            Outcome::Refused(refusal) if refusal.code == 404 => Ok(None),
            Outcome::Refused(refusal) => Err(anyhow!(refusal.message)),
            Outcome::List(_) | Outcome::Watch(_) => Ok(None),
        }
    }

    /// Sends a request; false if the object does not exist.
    pub fn ask(&self, hosted: &Hosted, id: &Id, verb: Verb) -> Result<bool> {
        let action = verb.name();
        match self.outcome(hosted, id, verb) {
            Outcome::Refused(refusal) if refusal.code == 404 => Ok(false),
            Outcome::Refused(refusal) => {
                Err(anyhow!(refusal.message)).with_context(|| format!("{action} {}/{}", id.resource, id.name))
            }
            _ => Ok(true),
        }
    }

    fn outcome(&self, hosted: &Hosted, id: &Id, verb: Verb) -> Outcome {
        let Id { group, version, resource, namespace, name } = id.clone();
        let target = Target { group, version, resource, namespace, name, subresource: String::new() };
        // No other patch accepts `force`.
        let force = matches!(verb, Verb::Patch(PatchKind::Apply, _)).then_some(true);
        let query = Query { field_manager: USER.into(), force, ..Query::default() };
        let user = Arc::clone(&self.user);
        let request = Request { user, agent: USER.into(), verb, target, query };
        hosted.apply(&request, Timestamp::now())
    }
}

/// A Secret in KCP.
fn secret(name: &str) -> Id {
    Id {
        group: String::new(),
        version: "v1".into(),
        resource: "secrets".into(),
        namespace: KCP_NAMESPACE.into(),
        name: name.into(),
    }
}

/// A runtime's own Kyma.
pub fn runtime_kyma() -> Id {
    Id {
        group: "operator.kyma-project.io".into(),
        version: "v1beta2".into(),
        resource: "kymas".into(),
        namespace: tidewatch_api::names::RUNTIME_NAMESPACE.into(),
        name: tidewatch_api::names::RUNTIME_KYMA_NAME.into(),
    }
}

/// A runtime's Kyma in KCP.
pub fn kcp_kyma(runtime: usize) -> Id {
    Id { namespace: KCP_NAMESPACE.into(), name: names::kyma(runtime), ..runtime_kyma() }
}

/// An earlier fleet had other ports or more runtimes.
fn remove_kubeconfigs(folder: &Path) -> Result<()> {
    let left = match fs::read_dir(folder) {
        Ok(left) => left,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", folder.display())),
    };
    for file in left {
        let file = file.with_context(|| format!("cannot read {}", folder.display()))?.path();
        let runtime = file.file_name().and_then(|name| name.to_str()?.strip_suffix(".kubeconfig"));
        if runtime.is_some_and(names::is_kyma) {
            fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
        }
    }
    Ok(())
}
