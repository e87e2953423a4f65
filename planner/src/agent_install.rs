//! Objects of the agent in a runtime, from the files of `deploy/agent`.
//!
//! The files are the one source, and belong to this version. Settings replace the image, the names, and the content of the agent's
//! ConfigMap; everything else is as in the files.

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
};

use serde_json::{Value, json};
use tidewatch_api::{
    names::{AGENT_CONFIG_MAP, AGENT_IDENTITY_SECRET, AGENT_NAME, AGENT_SIGNING_REQUEST, RUNTIME_NAMESPACE},
    watcher::WatchedField,
};

use xxhash_rust::xxh3::Xxh3;

use super::agent::{AgentWatch, ENGINE_ROUTE};

const FILES: [&str; 2] =
    [include_str!("../../deploy/agent/rbac.yaml"), include_str!("../../deploy/agent/agent.yaml")];

/// Environment variable of the agent.
const INSTALLATION: &str = "TIDEWATCH_INSTALLATION";

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
    /// Identifies an installation with these settings. The agent reports it.
    #[must_use]
    pub fn installation(&self) -> String {
        let mut hash = Xxh3::new();
        self.hash(&mut hash);
        format!("{:016x}", hash.finish())
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
            Some("ConfigMap") => object["data"] = json!({"config.yaml": config, "ca.crt": ca}),
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

fn set_deployment(deployment: &mut Value, settings: &AgentSettings, config: &str) {
    deployment["metadata"]["name"] = settings.name.as_str().into();
    let template = &mut deployment["spec"]["template"];
    // The agent does not read its own settings again: another hash restarts it.
    let hash = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(config.as_bytes()));
    template["metadata"]["annotations"] = json!({"tidewatch.kyma-project.io/settings": hash});
    let pod = &mut template["spec"];
    pod["serviceAccountName"] = settings.name.as_str().into();
    let container = &mut pod["containers"][0];
    container["image"] = settings.image.as_str().into();
    container["env"] = json!([{"name": INSTALLATION, "value": settings.installation()}]);
    if let Some(secret) = &settings.pull_secret {
        pod["imagePullSecrets"] = json!([{"name": secret}]);
    }
}

/// The agent's file, as JSON, which is also YAML. An agent that waits for its upgrade may start again with it, and refuses unknown fields:
/// write a new field only one minor version after agents read it.
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
        let other = AgentSettings { image: "registry.example/tidewatch-agent:1.0.1".into(), ..settings() };
        assert_ne!(installation_of(deployment), Some(&*other.installation()));
        assert_eq!(of_kind(&objects, "Secret")["data"], Value::Null, "the agent alone writes its key");
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
