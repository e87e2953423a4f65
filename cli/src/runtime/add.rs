//! `tidewatch runtime add`.

use std::{fmt::Write as _, path::PathBuf, time::Duration};

use anyhow::{Context as _, bail, ensure};
use clap::{Args, ValueEnum};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
    core::{ApiResource, DynamicObject, GroupVersionKind, TypeMeta},
};
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma,
    names::{AGENT_SETTINGS, KCP_NAMESPACE, RUNTIME_NAMESPACE, labels},
};
use tidewatch_telemetry::stdio;
use tokio::time::{Instant, sleep};

use super::{
    api_server::{ApiServer, TOKEN_PLACEHOLDER},
    registration::{self, LabelChange, Registration, Wishes, dns_name, label},
    runtime_objects::{self, engine_rights},
    wait::{Until, wait},
};
use crate::{
    args::usage,
    clusters::{self, MANAGER, Side, failed},
    files, lint,
    output::print,
    revocation::check_runtime_id,
    rights::{listed, missing_of_self},
};

pub(super) const ABOUT: &str = "Register a runtime, or update its registration.

In the runtime, it applies a service account with the rights of the engine, and a Secret with its token. In the control plane
(KCP), it applies the Secret with the engine's kubeconfig, and the Kyma. Your own kubeconfig of the runtime stays on this machine.

Two clusters take part: --kubeconfig is the runtime's, --kcp-kubeconfig is KCP's.";

/// Time for the runtime's control plane to fill the token's Secret, and for new rights to take effect.
const SOON: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(250);
const SAME_CLUSTER: &str = "KCP and the runtime are the same cluster; name the runtime's kubeconfig with --kubeconfig, and \
                            KCP's with --kcp-kubeconfig or KUBECONFIG";

#[derive(Debug, Args)]
pub(crate) struct Add {
    /// Name of the Kyma in KCP.
    #[arg(value_name = "NAME")]
    kyma: String,
    /// Kubeconfig of the RUNTIME, of a user with all rights there.
    #[arg(long, visible_alias = "runtime-kubeconfig", value_name = "FILE")]
    kubeconfig: PathBuf,
    /// Kubeconfig of the control plane (KCP) [default: as kubectl's].
    #[arg(long, value_name = "FILE")]
    kcp_kubeconfig: Option<PathBuf>,
    /// Namespace of the receiver and its Kymas in KCP.
    #[arg(long, default_value = KCP_NAMESPACE)]
    namespace: String,
    /// Runtime id [default: that of the Kyma, else NAME].
    #[arg(long, value_name = "ID")]
    runtime_id: Option<String>,
    /// Domain of the runtime (skr-domain), which its agent's certificate carries [default: that of the Kyma, else the
    /// API server's name without a leading "api."].
    #[arg(long, value_name = "NAME", value_parser = dns_name)]
    domain: Option<String>,
    /// Channel of the modules [default: that of the Kyma, else regular].
    #[arg(long, value_name = "CHANNEL", value_parser = registration::channel)]
    channel: Option<String>,
    /// Label of the Kyma (repeatable). Labels of earlier runs stay; KEY- removes one.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<LabelChange>,
    /// Address of the runtime's API server as KCP reaches it [default: that of --kubeconfig].
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Give the engine this cluster role of the runtime instead of the shipped one.
    #[arg(long, value_name = "NAME")]
    cluster_role: Option<String>,
    /// Only print the objects; contact no cluster. With -o yaml or json, the objects as a whole.
    #[arg(long, value_enum, value_name = "HOW")]
    dry_run: Option<DryRun>,
    /// Wait until the runtime's events are proven to arrive, or with =ready until the Kyma is Ready.
    #[arg(long, value_enum, value_name = "STATE", num_args = 0..=1, require_equals = true, default_missing_value = "proven")]
    wait: Option<Until>,
    /// Longest wait.
    #[arg(long, value_name = "DURATION", default_value = "3m", value_parser = lint::duration)]
    timeout: Duration,
    /// Output format.
    #[arg(id = "output", short = 'o', long = "output", value_enum, default_value_t = Format::Text, value_name = "FORMAT")]
    output: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DryRun {
    /// Print the objects that would be applied.
    Client,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One object a line.
    Text,
    /// One JSON object.
    Json,
    /// YAML.
    Yaml,
}

/// An applied object, or one that would be.
struct Applied {
    side: Side,
    object: String,
    change: &'static str,
}

pub(super) async fn run(add: Add) -> anyhow::Result<()> {
    check_names(&add)?;
    let kubeconfig = clusters::read(&add.kubeconfig)?;
    let own = ApiServer::of(&kubeconfig, |file| files::read(file.as_ref()))
        .with_context(|| format!("{}", add.kubeconfig.display()))?;
    let server = own.clone().at(add.server.as_deref());
    // Fails before the first write.
    server.kubeconfig(&add.kyma, TOKEN_PLACEHOLDER)?;
    let in_runtime = runtime_objects::objects(add.cluster_role.as_deref())?;
    let domain = server.domain(&add.kyma);
    let wishes = Wishes {
        kyma: add.kyma.clone(),
        namespace: add.namespace.clone(),
        runtime_id: add.runtime_id.clone(),
        domain: add.domain.clone(),
        channel: add.channel.clone(),
        labels: add.labels.clone(),
    };
    if add.dry_run.is_some() {
        let registration = wishes.complete(None, domain)?;
        return print(&dry_run(add.output, &in_runtime, &registration, &server)?);
    }
    let kcp_config = clusters::kcp_config(add.kcp_kubeconfig.as_deref()).await?;
    for address in [&own.url, &server.url] {
        ensure!(kcp_config.cluster_url != *address.trim_end_matches('/'), "{address}: {SAME_CLUSTER}");
    }
    let (kcp, runtime) = (clusters::build(kcp_config)?, clusters::of_file(&kubeconfig).await?);
    let registration = register_in_kcp(&kcp, wishes, domain).await?;
    ensure_other_cluster(&kcp, &runtime).await?;
    ensure_unregistered(&kcp, &runtime, &registration).await?;
    // KCP refuses now, before anything is written.
    let placeholder = server.kubeconfig(&add.kyma, TOKEN_PLACEHOLDER)?;
    for object in [registration.secret(&placeholder), registration.kyma()] {
        apply(&kcp, Side::Kcp, &object, true).await?;
    }

    let mut applied = Vec::new();
    for object in &in_runtime {
        applied.push(apply(&runtime, Side::Runtime, object, false).await?);
    }
    let token = token(&runtime).await?;
    check_access(&own, &token, add.cluster_role.is_some()).await?;
    let made = server.kubeconfig(&add.kyma, &token)?;
    for object in [registration.secret(&made), registration.kyma()] {
        applied.push(apply(&kcp, Side::Kcp, &object, false).await?);
    }
    if let Some(until) = add.wait {
        wait(&kcp, &registration, until, add.timeout).await?;
    }
    print(&report(add.output, &registration, &applied)?)
}

/// Wrong names are usage errors.
fn check_names(add: &Add) -> anyhow::Result<()> {
    let name = &add.kyma;
    if name.len() > 63 || dns_name(name).is_err() {
        return Err(usage(&format!("'{name}' is no name of a Kyma: up to 63 of a-z, 0-9, '-' and '.'")));
    }
    add.runtime_id.as_deref().map_or(Ok(()), check_runtime_id)
}

/// Refuses KCP at another address: the engine's account would have all rights there.
async fn ensure_other_cluster(kcp: &Client, runtime: &Client) -> anyhow::Result<()> {
    let uid = async |client: &Client| {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        namespaces.get_metadata("kube-system").await.ok().and_then(|namespace| namespace.metadata.uid)
    };
    let (kcp, runtime) = (uid(kcp).await, uid(runtime).await);
    ensure!(kcp.is_none() || kcp != runtime, SAME_CLUSTER);
    Ok(())
}

/// Refuses a runtime whose agent was installed for another Kyma of this control plane.
async fn ensure_unregistered(
    kcp: &Client,
    runtime: &Client,
    registration: &Registration,
) -> anyhow::Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(runtime.clone(), RUNTIME_NAMESPACE);
    let map = maps.get_opt(AGENT_SETTINGS).await;
    let map = map.map_err(|error| failed(Side::Runtime, "reading the agent's ConfigMap", &error))?;
    let config = map.and_then(|map| map.data?.remove("config.yaml")).unwrap_or_default();
    let config: Value = serde_json::from_str(&config).unwrap_or_default();
    let Some(id) = config["runtimeId"].as_str().filter(|id| *id != registration.runtime_id) else {
        return Ok(());
    };
    let kymas: Api<Kyma> = Api::namespaced(kcp.clone(), &registration.namespace);
    let params = ListParams::default().labels(&format!("{}={id}", labels::RUNTIME_ID)).limit(1);
    let owner = kymas.list_metadata(&params).await;
    let owner = owner.map_err(|error| failed(Side::Kcp, "listing Kymas", &error))?.items.pop();
    if let Some(name) = owner.and_then(|kyma| kyma.metadata.name) {
        bail!(
            "the runtime is registered as the Kyma {name} already; update it: tidewatch runtime add {name}, or delete \
             it first: kubectl -n {} delete kyma {name}",
            registration.namespace
        );
    }
    Ok(())
}

/// Reads the runtime's objects in KCP, and completes the registration.
async fn register_in_kcp(kcp: &Client, wishes: Wishes, domain: String) -> anyhow::Result<Registration> {
    let (kymas, secrets): (Api<Kyma>, Api<Secret>) =
        (Api::namespaced(kcp.clone(), &wishes.namespace), Api::namespaced(kcp.clone(), &wishes.namespace));
    let with = |label: &str, value: &str| ListParams::default().labels(&format!("{label}={value}")).limit(10);
    let kyma = wishes.kyma.clone();
    // A list tells an unserved kind from an absent object.
    kymas
        .list_metadata(&with(labels::RUNTIME_ID, "none"))
        .await
        .map_err(|e| failed(Side::Kcp, "listing Kymas", &e))?;
    let existing = kymas.get_opt(&kyma).await.map_err(|e| failed(Side::Kcp, "reading the Kyma", &e))?;
    let registration = wishes.complete(existing.as_ref(), domain)?;
    let same_id = kymas.list_metadata(&with(labels::RUNTIME_ID, &registration.runtime_id)).await;
    let same_id = same_id.map_err(|e| failed(Side::Kcp, "listing Kymas", &e))?;
    let of_kyma = secrets.list_metadata(&with(labels::KYMA_NAME, &kyma)).await;
    let of_kyma = of_kyma.map_err(|e| failed(Side::Kcp, "listing kubeconfig Secrets", &e))?;
    let same_id: Vec<_> = same_id.items.iter().map(kube::ResourceExt::name_any).collect();
    let of_kyma: Vec<_> = of_kyma.items.iter().map(kube::ResourceExt::name_any).collect();
    registration.check_unique(&same_id, &of_kyma)?;
    Ok(registration)
}

/// Applies an object by server-side apply.
async fn apply(client: &Client, side: Side, object: &Value, dry_run: bool) -> anyhow::Result<Applied> {
    let types: TypeMeta = serde_json::from_value(object.clone())?;
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(types)?);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (namespace, name) = (text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]));
    let api: Api<DynamicObject> = match namespace.as_str() {
        "" => Api::all_with(client.clone(), &resource),
        namespace => Api::namespaced_with(client.clone(), namespace, &resource),
    };
    let label = label_of(object);
    let call = format!("applying {label} in {}", side.name());
    let before = api.get_metadata_opt(&name).await.map_err(|error| failed(side, &call, &error))?;
    let params = PatchParams { dry_run, ..PatchParams::apply(MANAGER).force() };
    let after = api.patch(&name, &params, &Patch::Apply(object)).await;
    let after = after.map_err(|error| match &error {
        kube::Error::Api(status) if status.code == 422 && resource.kind == "ClusterRoleBinding" => {
            let hint = "; to give the service account another role, delete the binding first: kubectl delete \
                        clusterrolebinding tidewatch-engine";
            anyhow::anyhow!("{:#}{hint}", failed(side, &call, &error))
        }
        _ => failed(side, &call, &error),
    })?;
    let change = match before {
        None => "created",
        Some(before) if before.metadata.resource_version == after.metadata.resource_version => "unchanged",
        Some(_) => "configured",
    };
    Ok(Applied { side, object: label, change })
}

fn label_of(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (namespace, name) = (text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]));
    let separator = if namespace.is_empty() { "" } else { "/" };
    format!("{} {namespace}{separator}{name}", text(&object["kind"]))
}

/// Waits for the service account's token.
async fn token(runtime: &Client) -> anyhow::Result<String> {
    let api: Api<Secret> = Api::namespaced(runtime.clone(), runtime_objects::NAMESPACE);
    let (began, name) = (Instant::now(), runtime_objects::TOKEN);
    loop {
        let secret = api.get_opt(name).await;
        let secret = secret.map_err(|error| failed(Side::Runtime, "reading the token's Secret", &error))?;
        if let Some(token) = secret.and_then(|secret| secret.data?.remove("token")) {
            return String::from_utf8(token.0).context("the token is no text");
        }
        if began.elapsed() >= SOON {
            bail!(
                "the runtime's control plane has written no token into the Secret {}/{name} within {} s; is the \
                 service-account token controller of its kube-controller-manager running?",
                runtime_objects::NAMESPACE,
                SOON.as_secs()
            );
        }
        sleep(PAUSE).await;
    }
}

/// Checks the rights of the made kubeconfig, from this machine. New rights take effect after a moment.
async fn check_access(server: &ApiServer, token: &str, has_other_role: bool) -> anyhow::Result<()> {
    let made = kube::config::Kubeconfig::from_yaml(&server.kubeconfig("runtime", token)?)?;
    let (client, rights, began) = (clusters::of_file(&made).await?, engine_rights()?, Instant::now());
    loop {
        let lacks = match missing_of_self(&client, &rights).await {
            Ok(missing) if missing.is_empty() => return Ok(()),
            Ok(missing) => format!("lacks rights: {}", listed(&missing)),
            Err(error) => format!("cannot be used: {}", clusters::explain(Side::Runtime, &error)),
        };
        if has_other_role {
            stdio::note(&format!(
                "the service account of the engine {lacks}; modules that need them will report it in their status"
            ));
            return Ok(());
        }
        if began.elapsed() >= SOON {
            bail!(
                "the service account tidewatch-engine {lacks}; nothing was written to KCP. Run the command again"
            );
        }
        sleep(PAUSE).await;
    }
}

fn dry_run(
    output: Format,
    in_runtime: &[Value],
    registration: &Registration,
    server: &ApiServer,
) -> anyhow::Result<String> {
    let kubeconfig = server.kubeconfig(&registration.kyma, TOKEN_PLACEHOLDER)?;
    let in_kcp = [registration.printed_secret(&kubeconfig), registration.kyma()];
    let sides = [(Side::Runtime, in_runtime), (Side::Kcp, &in_kcp)];
    match output {
        Format::Json => Ok(format!("{:#}", json!({"runtime": in_runtime, "kcp": in_kcp}))),
        Format::Yaml => {
            let mut text = "# Objects of two clusters. Apply each to its own.\n".to_owned();
            for (side, objects) in sides {
                for object in objects {
                    let _ = write!(text, "---\n# In {}.\n{}", side.name(), serde_saphyr::to_string(object)?);
                }
            }
            Ok(text)
        }
        Format::Text => {
            let all =
                sides.iter().flat_map(|(side, objects)| objects.iter().map(move |object| (*side, object)));
            let applied = all.map(|(side, object)| {
                let (object, change) = (label_of(object), "would be applied (dry run)");
                line(&Applied { side, object, change })
            });
            Ok(applied.collect())
        }
    }
}

fn line(applied: &Applied) -> String {
    format!("{:<12} {:<60} {}\n", applied.side.name(), applied.object, applied.change)
}

fn report(output: Format, registration: &Registration, applied: &[Applied]) -> anyhow::Result<String> {
    let Registration { kyma, runtime_id, domain, namespace, .. } = registration;
    let objects = applied.iter().map(|one| {
        let cluster = if one.side == Side::Kcp { "kcp" } else { "runtime" };
        json!({"cluster": cluster, "object": one.object, "change": one.change})
    });
    let result = json!({"kyma": kyma, "namespace": namespace, "runtimeId": runtime_id, "domain": domain,
                        "objects": objects.collect::<Vec<_>>()});
    Ok(match output {
        Format::Json => format!("{result:#}"),
        Format::Yaml => serde_saphyr::to_string(&result)?,
        Format::Text => {
            let mut text: String = applied.iter().map(line).collect();
            let _ = writeln!(
                text,
                "runtime {runtime_id} is registered as Kyma {namespace}/{kyma}, domain {domain}"
            );
            text
        }
    })
}

#[cfg(test)]
mod tests {
    use kube::config::Kubeconfig;

    use super::*;

    fn printed(output: Format) -> String {
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "x", "cluster": {"server": "https://api.c.example"}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "u"}}]});
        let config = Kubeconfig::from_yaml(&config.to_string()).unwrap();
        let server = ApiServer::of(&config, |_| Ok(String::new())).unwrap();
        let wishes = Wishes {
            kyma: "harbour".into(),
            namespace: "kcp-system".into(),
            runtime_id: Some("r-1".into()),
            domain: None,
            channel: Some("fast".into()),
            labels: vec![label("kyma-project.io/region=eu").unwrap()],
        };
        let registration = wishes.complete(None, server.domain("harbour")).unwrap();
        dry_run(output, &runtime_objects::objects(None).unwrap(), &registration, &server).unwrap()
    }

    #[test]
    fn a_dry_run_prints_every_object_without_a_token() {
        insta::assert_snapshot!(printed(Format::Yaml));
        let lines = printed(Format::Text);
        assert_eq!(lines.lines().count(), 7, "{lines}");
        let both: Value = serde_json::from_str(&printed(Format::Json)).unwrap();
        assert_eq!(both["runtime"].as_array().map(Vec::len), Some(5));
        assert_eq!(both["kcp"][1]["metadata"]["annotations"]["skr-domain"], "c.example");
    }
}
