//! `tidewatch certs status` and `rotate`: the CA and its rotation, and the certificates of receiver and agents.

use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use clap::Args;
use jiff::{Timestamp, Unit};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Secret},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tidewatch_api::names::{CA_SECRET, REVOCATIONS, ROTATE_CA, SERVER_SECRET};
use tidewatch_certs::{rotation::Step, secret, validity};
use tidewatch_demo::http;
use tidewatch_receiver::{
    lease,
    pki::{SINCE, STEP},
    rotation::PAGE,
};

use crate::{
    clusters::{ADMIN_VARIABLE, ControlPlane, Side::KcpAlone, admin_url, failed},
    output::{Format, print, seconds},
};

/// Runtimes that are listed by name.
const LISTED: usize = 20;
const TIMEOUT: Duration = Duration::from_secs(20);
/// Annotation of cert-manager on its Secrets.
const CERT_MANAGER: &str = "cert-manager.io/certificate-name";

/// Where the receiver is.
#[derive(Debug, Args)]
pub(crate) struct Status {
    #[command(flatten)]
    control_plane: ControlPlane,
    /// Admin address of the leading receiver [default: by the API server's proxy to the leader's pod].
    #[arg(long, alias = "receiver", env = ADMIN_VARIABLE, value_name = "URL", value_parser = admin_url)]
    admin: Option<String>,
}

pub(crate) async fn status(status: &Status, output: Format) -> anyhow::Result<()> {
    let ControlPlane { namespace, .. } = &status.control_plane;
    let client = status.control_plane.client().await?;
    let page = match &status.admin {
        Some(url) => http::json(&format!("{url}{PAGE}")).await,
        None => by_proxy(&client, namespace).await,
    };
    let (page, unknown) = match page {
        Ok(page) => (page, None),
        Err(error) => (Value::Null, Some(format!("{error:#}"))),
    };
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let server = secrets.get_opt(SERVER_SECRET).await;
    let server = server.map_err(|error| failed(KcpAlone, "reading the receiver's certificate", &error))?;
    let ca = ca(&secrets, namespace).await?;
    let maps: Api<ConfigMap> = Api::namespaced(client, namespace);
    let revoked = maps.get_opt(REVOCATIONS).await;
    let revoked = revoked.map_err(|error| failed(KcpAlone, "reading the revoked runtimes", &error))?;
    let revoked = revoked.and_then(|map| map.data).unwrap_or_default();
    let result = result(&page, unknown, ends(&ca)?, server.as_ref().map(ends).transpose()?, &json!(revoked));
    match output {
        Format::Json => output.print(&result),
        Format::Text => print(&text(&result, Timestamp::now())),
    }
}

/// Requests a rotation of the CA.
pub(crate) async fn rotate(control_plane: &ControlPlane, output: Format) -> anyhow::Result<()> {
    let client = control_plane.client().await?;
    let namespace = &control_plane.namespace;
    let secrets: Api<Secret> = Api::namespaced(client, namespace);
    let next = rotatable(&ca(&secrets, namespace).await?)?;
    let now = Timestamp::now().round(Unit::Second)?.to_string();
    let patch = json!({"metadata": {"annotations": {ROTATE_CA: now}}});
    let patched = secrets.patch_metadata(CA_SECRET, &PatchParams::default(), &Patch::Merge(&patch)).await;
    patched.map_err(|error| failed(KcpAlone, "requesting the rotation", &error))?;
    output.print(&json!({"requested": now, "next": next}))
}

async fn ca(secrets: &Api<Secret>, namespace: &str) -> anyhow::Result<Secret> {
    let ca = secrets.get_opt(CA_SECRET).await;
    ca.map_err(|error| failed(KcpAlone, "reading the CA", &error))?.with_context(|| {
        format!("there is no Secret {CA_SECRET} in {namespace}: no receiver with an own CA has run there yet")
    })
}

/// Returns the step of the rotation that is under way, and its start.
pub(crate) fn rotation(ca: &Secret) -> Option<(&str, &str)> {
    let annotation = |name: &str| ca.annotations().get(name).map(String::as_str);
    let step = annotation(STEP).filter(|step| *step != Step::Stable.label())?;
    Some((step, annotation(SINCE).unwrap_or_default()))
}

/// Refuses a CA that the receiver does not rotate. Returns the next step.
fn rotatable(ca: &Secret) -> anyhow::Result<String> {
    ensure!(
        !ca.annotations().contains_key(CERT_MANAGER),
        "cert-manager keeps this CA, so the receiver does not rotate it; to renew it now: cmctl renew {CA_SECRET}"
    );
    Ok(match rotation(ca) {
        Some((step, _)) => format!(
            "a rotation is under way ({step}), and another one begins after it; tidewatch certs status shows the steps"
        ),
        None => "tidewatch certs status shows the steps".to_owned(),
    })
}

fn ends(secret: &Secret) -> anyhow::Result<Timestamp> {
    Ok(validity(secret::text(secret, secret::TLS_CRT)?.as_bytes())?.not_after)
}

/// Reads the page of the leader's pod.
async fn by_proxy(client: &Client, namespace: &str) -> anyhow::Result<Value> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let lease = leases.get_opt(lease::NAME).await;
    let lease = lease.map_err(|error| failed(KcpAlone, "reading the Lease", &error))?;
    let holder = lease.and_then(|lease| lease.spec?.holder_identity);
    let pod =
        holder.as_deref().and_then(|holder| Some(holder.strip_prefix("tidewatch.")?.rsplit_once('_')?.0));
    let Some(pod) = pod else { bail!("no receiver leads") };
    let path = format!("/api/v1/namespaces/{namespace}/pods/http:{pod}:8080/proxy{PAGE}");
    let request = client.request(::http::Request::get(path).body(Vec::new())?);
    let page = tokio::time::timeout(TIMEOUT, request).await.context("the leader's pod did not answer")?;
    page.map_err(|error| {
        let failed = failed(KcpAlone, &format!("asking the leader's pod {pod}"), &error);
        anyhow!("{failed}; or give its admin address by --admin")
    })
}

/// `page`: the leader's page, null if unknown for the reason `unknown`.
fn result(
    page: &Value,
    unknown: Option<String>,
    ca_ends: Timestamp,
    server_ends: Option<Timestamp>,
    revoked: &Value,
) -> Value {
    let runtimes = page["runtimes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let lagging: Vec<&Value> = runtimes
        .iter()
        .filter(|runtime| runtime["trusts"] == false)
        .map(|runtime| &runtime["kyma"])
        .collect();
    let mut ends: Vec<&Value> =
        runtimes.iter().filter(|runtime| runtime["certificateEnds"].is_string()).collect();
    ends.sort_by_key(|runtime| runtime["certificateEnds"].as_str());
    json!({
        "ca": {"ends": ca_ends, "step": page["ca"]["step"], "since": page["ca"]["since"],
               "deadline": page["ca"]["deadline"], "requested": page["ca"]["requested"]},
        "server": {"ends": server_ends},
        "runtimes": runtimes.len(),
        "lagging": lagging,
        "nextToEnd": ends.first(),
        "certificates": runtimes,
        "revoked": revoked,
        "unknown": unknown,
    })
}

fn text(result: &Value, now: Timestamp) -> String {
    let until = |end: &Value| match end.as_str().and_then(|end| end.parse::<Timestamp>().ok()) {
        Some(at) => format!("{} ({})", seconds(&at.to_string()), left(at, now)),
        None => "unknown".to_owned(),
    };
    let names = |list: &Value, of: fn(&Value) -> &str| {
        let all = list.as_array().map(Vec::as_slice).unwrap_or_default();
        let more =
            if all.len() > LISTED { format!(" and {} more", all.len() - LISTED) } else { String::new() };
        format!("{}{more}", all.iter().take(LISTED).map(of).collect::<Vec<_>>().join(", "))
    };
    let ca = &result["ca"];
    let mut lines = vec![format!("CA             ends {}", until(&ca["ends"]))];
    match ca["step"].as_str() {
        Some("publishing") => lines.push(format!(
            "rotation       publishing since {}; goes on when all agents trust the next CA, at the latest {}",
            seconds(ca["since"].as_str().unwrap_or_default()),
            until(&ca["deadline"])
        )),
        Some("retiring") => {
            lines.push(format!("rotation       retiring the replaced CA until {}", until(&ca["deadline"])));
        }
        Some(_) => lines.push(format!("rotation       none; due {}", until(&ca["deadline"]))),
        None => {}
    }
    if ca["requested"] == true {
        lines.push("               another one is requested".to_owned());
    }
    lines.push(format!("receiver       ends {}", until(&result["server"]["ends"])));
    if let Some(unknown) = result["unknown"].as_str() {
        lines.push(format!("agents         unknown: {unknown}"));
    } else {
        let next = &result["nextToEnd"];
        let next = match next["kyma"].as_str() {
            Some(kyma) => format!("; the first to end: {kyma} {}", until(&next["certificateEnds"])),
            None => String::new(),
        };
        lines.push(format!("agents         {} runtimes{next}", result["runtimes"]));
        if result["lagging"].as_array().is_some_and(|lagging| !lagging.is_empty()) {
            let lagging = names(&result["lagging"], |kyma| kyma.as_str().unwrap_or_default());
            lines.push(format!("lagging        {lagging}"));
        }
    }
    if let Some(revoked) = result["revoked"].as_object().filter(|revoked| !revoked.is_empty()) {
        let revoked: Vec<&str> = revoked.keys().map(String::as_str).collect();
        lines.push(format!("revoked        {}", revoked.join(", ")));
    }
    lines.join("\n")
}

fn left(end: Timestamp, now: Timestamp) -> String {
    let seconds = end.duration_since(now).as_secs();
    match seconds {
        ..=0 => "ended".to_owned(),
        1..=120 => format!("in {seconds} s"),
        121..=7200 => format!("in {} min", seconds / 60),
        7201..=172_800 => format!("in {} h", seconds / 3600),
        _ => format!("in {} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-11-29T10:00:00Z".parse().unwrap()
    }

    #[test]
    fn status_names_the_step_and_the_runtimes_that_lag() {
        let page = json!({
            "ca": {"step": "publishing", "since": "2026-11-29T09:00:00Z", "deadline": "2026-11-30T09:00:00Z",
                   "requested": true},
            "runtimes": [
                {"kyma": "a", "certificateEnds": "2026-12-04T10:00:00Z", "trusts": true},
                {"kyma": "b", "certificateEnds": "2026-11-29T11:00:00Z", "trusts": false},
                {"kyma": "c", "certificateEnds": null, "trusts": false}]
        });
        let ca_ends = "2028-11-29T10:00:00Z".parse().unwrap();
        let result = result(&page, None, ca_ends, Some(now()), &json!({"r9": "2026-11-01T00:00:00Z"}));
        assert_eq!(result["lagging"], json!(["b", "c"]));
        assert_eq!(
            text(&result, now()),
            "CA             ends 2028-11-29T10:00:00Z (in 731 days)\n\
             rotation       publishing since 2026-11-29T09:00:00Z; goes on when all agents trust the next CA, at \
             the latest 2026-11-30T09:00:00Z (in 23 h)\n               another one is requested\n\
             receiver       ends 2026-11-29T10:00:00Z (ended)\n\
             agents         3 runtimes; the first to end: b 2026-11-29T11:00:00Z (in 60 min)\n\
             lagging        b, c\n\
             revoked        r9"
        );
    }

    #[test]
    fn a_rotation_is_requested_only_of_the_receivers_own_ca() {
        let with = |annotations: Value| -> Secret {
            serde_json::from_value(json!({"metadata": {"annotations": annotations}})).unwrap()
        };
        let refused = rotatable(&with(json!({CERT_MANAGER: CA_SECRET}))).unwrap_err().to_string();
        assert!(refused.contains("cmctl renew tidewatch-ca"), "{refused}");
        assert!(rotatable(&with(json!({STEP: "stable"}))).unwrap().starts_with("tidewatch certs status"));
        let busy = rotatable(&with(json!({STEP: "retiring"}))).unwrap();
        assert!(busy.contains("(retiring), and another one begins after it"), "{busy}");
    }

    #[test]
    fn status_says_why_the_agents_are_unknown() {
        let result = result(&Value::Null, Some("no receiver leads".into()), now(), None, &json!({}));
        assert!(text(&result, now()).contains("agents         unknown: no receiver leads"));
    }
}
