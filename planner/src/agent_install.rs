//! Objects of the agent in a runtime, from the files of `deploy/agent`.
//!
//! The files are the one source, and belong to this version. Settings replace the image, the names, and the content of the agent's
//! ConfigMap; everything else is as in the files. All objects together are one version: an agent gets them at its upgrade, and before it only the CAs
//! ([`only_cas`]).

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};
use tidewatch_api::{
    names::{
        AGENT_CONFIG_MAP, AGENT_IDENTITY_SECRET, AGENT_NAME, AGENT_SIGNING_REQUEST, RUNTIME_NAMESPACE,
        field_managers,
    },
    object::{Gvk, ObjectRef},
    watcher::WatchedField,
};

use super::agent::{AgentWatch, ENGINE_ROUTE};

const FILES: [&str; 2] =
    [include_str!("../../deploy/agent/rbac.yaml"), include_str!("../../deploy/agent/agent.yaml")];

/// Keys of the agent's ConfigMap.
const CONFIG: &str = "config.yaml";
const CAS: &str = "ca.crt";

/// Annotation of the agent's ConfigMap, whose name is fixed: the name of the Deployment and its service account.
const NAME: &str = "tidewatch.kyma-project.io/agent-name";

/// Environment variable of the agent.
pub const INSTALLATION: &str = "TIDEWATCH_INSTALLATION";

/// Port of the agent's probes and metrics.
const ADMIN_PORT: u16 = 9090;

/// Settings of the agents, equal in all runtimes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AgentSettings {
    /// Address that agents dial, `https://host:port`.
    pub url: String,
    /// Image reference.
    pub image: String,
    /// Name of the Deployment and its service account.
    pub name: String,
    /// HTTP proxy between agent and receiver.
    pub proxy: Option<String>,
    /// Image pull Secret in the runtime's namespace.
    pub pull_secret: Option<String>,
}

impl AgentSettings {
    /// Identifies an installation of this version with these settings. The agent reports it.
    #[must_use]
    pub fn installation(&self) -> String {
        let objects = rendered(self, "", "").unwrap_or_default();
        hash(&Value::from(objects).to_string())
    }

    /// Username of the agents' service account, as an API server writes it.
    #[must_use]
    pub fn username(&self) -> String {
        format!("system:serviceaccount:{RUNTIME_NAMESPACE}:{}", self.name)
    }
}

/// Returns a runtime's objects in the order of their creation. `ca`: CAs of the receiver (PEM).
///
/// Fails only if the embedded files are no valid YAML, which a test rules out.
pub fn objects(settings: &AgentSettings, runtime: &str, ca: &str) -> Result<Vec<Value>, String> {
    let mut objects = rendered(settings, runtime, ca)?;
    for deployment in objects.iter_mut().filter(|object| object["kind"] == "Deployment") {
        deployment["spec"]["template"]["spec"]["containers"][0]["env"] =
            json!([{"name": INSTALLATION, "value": settings.installation()}]);
    }
    Ok(objects)
}

/// The objects without their installation, which is a hash of them.
fn rendered(settings: &AgentSettings, runtime: &str, ca: &str) -> Result<Vec<Value>, String> {
    let mut objects = Vec::new();
    for file in FILES {
        let documents: Vec<Value> = serde_saphyr::from_multiple(file).map_err(|error| error.to_string())?;
        objects.extend(documents);
    }
    let config = config(settings, runtime);
    for object in &mut objects {
        object["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "tidewatch".into();
        rename_account(object, &settings.name);
        match object["kind"].as_str() {
            Some("ConfigMap") => {
                object["metadata"]["annotations"] = json!({NAME: settings.name});
                object["data"] = json!({CONFIG: config, CAS: ca});
            }
            Some("Deployment") => set_deployment(object, settings, &config),
            _ => {}
        }
    }
    Ok(objects)
}

/// The installation of an agent's Deployment; `None` if it is not from here.
#[must_use]
pub fn installation_of(deployment: &Value) -> Option<&str> {
    let containers = deployment["spec"]["template"]["spec"]["containers"].as_array()?;
    let mut variables = containers.iter().filter_map(|container| container["env"].as_array()).flatten();
    variables.find(|variable| variable["name"] == INSTALLATION)?["value"].as_str()
}

/// A wanted object, and the present one.
pub type Pair = (Value, Option<Value>);

/// Whether the wanted objects are another installation than the agent has.
#[must_use]
pub fn is_upgrade(objects: &[Pair]) -> bool {
    objects.iter().any(|(wanted, present)| {
        present.as_ref().is_some_and(|present| {
            installation_of(present) != installation_of(wanted) || name_of(present) != name_of(wanted)
        })
    })
}

/// The agent's Deployment and service account of a former name. Two agents would take turns at one memory, so these go first.
#[must_use]
pub fn renamed(objects: &[Pair]) -> Vec<ObjectRef> {
    let former = objects.iter().filter_map(|(wanted, present)| {
        name_of(present.as_ref()?).filter(|former| Some(*former) != name_of(wanted))
    });
    let kinds = [("apps/v1", "Deployment"), ("v1", "ServiceAccount")];
    former
        .flat_map(|name| {
            kinds.map(|(version, kind)| ObjectRef {
                gvk: Gvk::of(version, kind),
                namespace: RUNTIME_NAMESPACE.into(),
                name: name.into(),
            })
        })
        .collect()
}

fn name_of(object: &Value) -> Option<&str> {
    object["metadata"]["annotations"][NAME].as_str()
}

/// Time at which the engine last changed the agent's present Deployment; `None` for one as it was created: its agent is no upgrade.
#[must_use]
pub fn upgraded_at(objects: &[Pair]) -> Option<Timestamp> {
    let deployment = objects.iter().find(|(wanted, _)| wanted["kind"] == "Deployment")?.1.as_ref()?;
    deployment["metadata"]["generation"].as_i64().filter(|generation| *generation > 1)?;
    let mut entries = deployment["metadata"]["managedFields"].as_array()?.iter();
    let entry =
        entries.find(|entry| entry["manager"] == field_managers::AGENT && entry["operation"] == "Apply");
    entry?["time"].as_str()?.parse().ok()
}

/// Keeps only the part that reaches an agent before its upgrade: the ConfigMap with the new CAs, and with the settings of the agent's own
/// version. The agent reads both at its next restart, and refuses settings that it does not know.
pub fn only_cas(objects: &mut Vec<Pair>) {
    objects.retain_mut(|(wanted, present)| {
        let config =
            present.as_ref().map(|present| &present["data"][CONFIG]).filter(|config| config.is_string());
        let is_kept = wanted["kind"] == "ConfigMap" && config.is_some();
        if let Some(config) = config.filter(|_| is_kept) {
            wanted["data"][CONFIG] = config.clone();
            wanted["metadata"]["annotations"] =
                present.as_ref().and_then(name_of).map_or_else(|| json!({}), |name| json!({NAME: name}));
        }
        is_kept
    });
}

/// Objects that the agent itself creates. They go with it.
pub fn created_by_agent() -> impl Iterator<Item = ObjectRef> {
    let own = |gvk, suffix: &str| ObjectRef {
        gvk,
        namespace: RUNTIME_NAMESPACE.into(),
        name: format!("tidewatch-agent-{suffix}"),
    };
    let digest = own(Gvk::of("v1", "ConfigMap"), "digest");
    let names = (0..16).map(move |chunk| own(Gvk::of("v1", "ConfigMap"), &format!("names-{chunk:x}")));
    let canary = own(Gvk::of("coordination.k8s.io/v1", "Lease"), "canary");
    [digest, canary, signing_request()].into_iter().chain(names)
}

/// The agent's certificate signing request.
#[must_use]
pub fn signing_request() -> ObjectRef {
    let gvk = Gvk::of("certificates.k8s.io/v1", "CertificateSigningRequest");
    ObjectRef { gvk, namespace: String::new(), name: AGENT_SIGNING_REQUEST.into() }
}

/// The watch that reports the agent's certificate signing request to the control plane at once.
#[must_use]
pub fn signing_request_watch() -> AgentWatch {
    AgentWatch {
        name: "engine.enrolment".to_owned(),
        route: ENGINE_ROUTE.to_owned(),
        group: "certificates.k8s.io".to_owned(),
        version: "v1".to_owned(),
        resource: "certificatesigningrequests".to_owned(),
        field: WatchedField::Spec,
        labels: BTreeMap::from([("app.kubernetes.io/name".to_owned(), AGENT_NAME.to_owned())]),
    }
}

fn rename_account(object: &mut Value, name: &str) {
    if object["kind"] == "ServiceAccount" {
        object["metadata"]["name"] = name.into();
    }
    let subjects = object.get_mut("subjects").and_then(Value::as_array_mut);
    for subject in subjects.into_iter().flatten() {
        subject["name"] = name.into();
    }
}

fn hash(text: &str) -> String {
    format!("{:016x}", xxhash_rust::xxh3::xxh3_64(text.as_bytes()))
}

fn set_deployment(deployment: &mut Value, settings: &AgentSettings, config: &str) {
    deployment["metadata"]["name"] = settings.name.as_str().into();
    let template = &mut deployment["spec"]["template"];
    // The agent does not read its own settings again: another hash restarts it.
    template["metadata"]["annotations"] = json!({"tidewatch.kyma-project.io/settings": hash(config)});
    let pod = &mut template["spec"];
    pod["serviceAccountName"] = settings.name.as_str().into();
    pod["containers"][0]["image"] = settings.image.as_str().into();
    if let Some(secret) = &settings.pull_secret {
        pod["imagePullSecrets"] = json!([{"name": secret}]);
    }
}

/// The agent's file, as JSON, which is also YAML.
fn config(settings: &AgentSettings, runtime: &str) -> String {
    let mut config = json!({
        "runtimeId": runtime,
        "receiver": {
            "url": settings.url,
            // In the container's working directory, the folder of the ConfigMap.
            "caFile": "ca.crt",
            "enrolment": {
                "namespace": RUNTIME_NAMESPACE,
                "secret": AGENT_IDENTITY_SECRET,
                "signingRequest": AGENT_SIGNING_REQUEST,
            },
        },
        "adminAddress": format!("0.0.0.0:{ADMIN_PORT}"),
        "configMap": {"namespace": RUNTIME_NAMESPACE, "name": AGENT_CONFIG_MAP},
    });
    if let Some(proxy) = &settings.proxy {
        config["receiver"]["proxy"] = proxy.as_str().into();
    }
    serde_json::to_string_pretty(&config).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> AgentSettings {
        AgentSettings {
            url: "https://events.example:8443".into(),
            image: "registry.example/tidewatch-agent:1.0.0".into(),
            name: AGENT_NAME.into(),
            proxy: None,
            pull_secret: None,
        }
    }

    fn of_kind<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
        objects.iter().find(|object| object["kind"] == kind).unwrap()
    }

    #[test]
    fn the_files_become_a_runtimes_objects() {
        let objects = objects(&settings(), "r1", "a CA").unwrap();
        let kinds: Vec<&str> = objects.iter().filter_map(|object| object["kind"].as_str()).collect();
        let rbac = ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"];
        assert_eq!(kinds, [&rbac[..], &["ConfigMap", "Secret", "Deployment", "NetworkPolicy"]].concat());
        assert_eq!(of_kind(&objects, "ServiceAccount").as_object().unwrap().len(), 3, "no field is added");
        let map = of_kind(&objects, "ConfigMap");
        assert_eq!(map["data"]["ca.crt"], "a CA");
        let config: Value = serde_json::from_str(map["data"]["config.yaml"].as_str().unwrap()).unwrap();
        assert_eq!(
            (&config["runtimeId"], &config["receiver"]["url"]),
            (&"r1".into(), &"https://events.example:8443".into())
        );
        let pod = &of_kind(&objects, "Deployment")["spec"]["template"]["spec"];
        assert_eq!(pod["containers"][0]["image"], "registry.example/tidewatch-agent:1.0.0");
        assert_eq!(pod["imagePullSecrets"], Value::Null);
        let deployment = of_kind(&objects, "Deployment");
        assert_eq!(installation_of(deployment), Some(&*settings().installation()));
        assert_eq!(of_kind(&objects, "Secret")["data"], Value::Null, "the agent alone writes its key");
    }

    /// What an API server with the agent of `old` has for the objects of `new`.
    fn pairs(old: &AgentSettings, new: &AgentSettings, ca: &str) -> Vec<Pair> {
        let (present, wanted) = (objects(old, "r1", "old"), objects(new, "r1", ca));
        wanted.unwrap().into_iter().zip(present.unwrap().into_iter().map(Some)).collect()
    }

    #[test]
    fn other_settings_are_an_upgrade_and_other_cas_are_none() {
        let other = |change: fn(&mut AgentSettings)| {
            let mut other = settings();
            change(&mut other);
            other
        };
        for other in [
            other(|settings| settings.image = "registry.example/tidewatch-agent:1.0.1".into()),
            other(|settings| settings.url = "https://other.example:8443".into()),
            other(|settings| settings.name = "watcher".into()),
            other(|settings| settings.proxy = Some("http://proxy.example:3128".into())),
            other(|settings| settings.pull_secret = Some("pull".into())),
        ] {
            assert!(is_upgrade(&pairs(&settings(), &other, "old")), "{other:?}");
        }
        assert!(!is_upgrade(&pairs(&settings(), &settings(), "new")));
        let fresh: Vec<Pair> =
            objects(&settings(), "r1", "").unwrap().into_iter().map(|o| (o, None)).collect();
        assert!(!is_upgrade(&fresh), "a first installation waits for nothing");
    }

    #[test]
    fn the_engines_own_apply_tells_the_time_of_an_upgrade() {
        let mut pairs = pairs(&settings(), &settings(), "");
        assert_eq!(upgraded_at(&pairs), None);
        let entry =
            |manager: &str, time: &str| json!({"manager": manager, "operation": "Apply", "time": time});
        for (generation, upgraded) in [(1, None), (2, Some("2026-11-30T00:00:01Z"))] {
            for (_, present) in pairs.iter_mut().filter(|(wanted, _)| wanted["kind"] == "Deployment") {
                let metadata = &mut present.as_mut().unwrap()["metadata"];
                metadata["generation"] = generation.into();
                metadata["managedFields"] = json!([
                    entry("kubectl", "2026-11-30T00:00:02Z"),
                    entry(field_managers::AGENT, "2026-11-30T00:00:01Z"),
                ]);
            }
            assert_eq!(upgraded_at(&pairs), upgraded.map(|time| time.parse().unwrap()));
        }
    }

    #[test]
    fn every_object_of_the_files_belongs_to_the_installation() {
        let objects = objects(&settings(), "r1", "").unwrap();
        let other_rights = {
            let mut rendered = rendered(&settings(), "", "").unwrap();
            rendered.retain(|object| object["kind"] != "Role");
            hash(&Value::from(rendered).to_string())
        };
        assert_ne!(installation_of(of_kind(&objects, "Deployment")), Some(&*other_rights));
    }

    #[test]
    fn only_the_cas_reach_an_agent_before_its_upgrade() {
        let other = AgentSettings { url: "https://other.example:8443".into(), ..settings() };
        let mut pairs = pairs(&settings(), &other, "new");
        only_cas(&mut pairs);
        let [(wanted, Some(present))] = &pairs[..] else { panic!("{pairs:#?}") };
        assert_eq!((&wanted["kind"], &wanted["data"]["ca.crt"]), (&"ConfigMap".into(), &"new".into()));
        assert_eq!(wanted["data"]["config.yaml"], present["data"]["config.yaml"]);
        let mut unknown = vec![(wanted.clone(), None)];
        only_cas(&mut unknown);
        assert!(unknown.is_empty(), "the settings of the agent's version are unknown");
    }

    #[test]
    fn all_that_the_agents_role_lets_it_create_goes_with_it() {
        let objects = objects(&settings(), "r1", "").unwrap();
        let rules = of_kind(&objects, "Role")["rules"].as_array().unwrap();
        let may_create = |rule: &&Value| rule["verbs"].as_array().unwrap().contains(&"create".into());
        let names =
            rules.iter().filter(may_create).flat_map(|rule| rule["resourceNames"].as_array().unwrap());
        let mut names: Vec<&str> = names.filter_map(Value::as_str).chain([AGENT_SIGNING_REQUEST]).collect();
        let created: Vec<ObjectRef> = created_by_agent().collect();
        let mut created: Vec<&str> = created.iter().map(|id| &*id.name).collect();
        names.sort_unstable();
        created.sort_unstable();
        assert_eq!(created, names);
    }

    #[test]
    fn another_name_replaces_the_agent_of_the_former_one() {
        let other = AgentSettings { name: "watcher".into(), ..settings() };
        let mut pairs = pairs(&settings(), &other, "new");
        // Nothing of the new name exists.
        for (_, present) in pairs.iter_mut().filter(|(wanted, _)| wanted["metadata"]["name"] == "watcher") {
            *present = None;
        }
        assert!(is_upgrade(&pairs) && !renamed(&pairs).is_empty());
        let former: Vec<_> = renamed(&pairs).into_iter().map(|id| (id.gvk.kind, id.name)).collect();
        let of = |kind: &str| (kind.into(), AGENT_NAME.into());
        assert_eq!(former, [of("Deployment"), of("ServiceAccount")]);
        only_cas(&mut pairs);
        assert!(renamed(&pairs).is_empty(), "before its turn, the agent keeps its name");
        assert_eq!(pairs[0].0["metadata"]["annotations"][NAME], AGENT_NAME);
    }

    #[test]
    fn names_proxy_and_pull_secret_are_settings() {
        let settings = AgentSettings {
            name: "watcher".into(),
            proxy: Some("http://proxy.example:3128".into()),
            pull_secret: Some("pull".into()),
            ..settings()
        };
        let objects = objects(&settings, "r1", "").unwrap();
        assert_eq!(settings.username(), "system:serviceaccount:kyma-system:watcher");
        assert_eq!(of_kind(&objects, "ServiceAccount")["metadata"]["name"], "watcher");
        for binding in ["ClusterRoleBinding", "RoleBinding"] {
            assert_eq!(of_kind(&objects, binding)["subjects"][0]["name"], "watcher");
        }
        let deployment = of_kind(&objects, "Deployment");
        assert_eq!(deployment["metadata"]["name"], "watcher");
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(pod["serviceAccountName"], "watcher");
        assert_eq!(pod["imagePullSecrets"], json!([{"name": "pull"}]));
        let config = of_kind(&objects, "ConfigMap")["data"]["config.yaml"].as_str().unwrap();
        assert!(config.contains("http://proxy.example:3128"), "{config}");
    }

    #[test]
    fn other_settings_restart_the_agent_and_another_ca_does_not() {
        let hash = |settings: &AgentSettings, ca: &str| {
            let objects = objects(settings, "r1", ca).unwrap();
            of_kind(&objects, "Deployment")["spec"]["template"]["metadata"]["annotations"].to_string()
        };
        let elsewhere = AgentSettings { url: "https://other.example:8443".into(), ..settings() };
        assert_eq!(hash(&settings(), "a"), hash(&settings(), "b"), "the agent reads its CAs again");
        assert_ne!(hash(&settings(), "a"), hash(&elsewhere, "a"));
    }
}
