//! Checks the dependencies between crates (ARCHITECTURE.md, "Layout").

use std::{collections::BTreeMap, process::Command};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Product crates and their allowed dependencies. Tests and simulations may use all crates.
const ALLOWED: [(&str, &[&str]); 15] = [
    ("api", &[]),
    ("drain", &[]),
    ("wire", &[]),
    ("delivery", &["wire"]),
    ("telemetry", &["drain"]),
    ("tls", &["drain"]),
    ("certs", &["api"]),
    ("planner", &["api"]),
    ("oci", &["api"]),
    ("deployer", &["api", "oci"]),
    ("engine", &["api", "certs", "deployer", "oci", "planner", "wire"]),
    ("listener", &["api", "delivery", "drain", "telemetry", "tls", "wire"]),
    ("agent", &["api", "certs", "delivery", "drain", "telemetry", "tls", "wire"]),
    (
        "receiver",
        &[
            // Single-cluster mode runs an agent within the receiver's process.
            "agent",
            "api",
            "certs",
            "delivery",
            "deployer",
            "drain",
            "engine",
            "listener",
            "oci",
            "planner",
            "telemetry",
            "tls",
            "wire",
        ],
    ),
    ("fake-apiserver", &["certs", "drain", "tls"]),
];

/// Strips the prefix of a workspace crate.
fn own(name: &Value) -> Option<&str> {
    name.as_str()?.strip_prefix("tidewatch-")
}

fn cargo(arguments: &[&str]) -> Result<String> {
    let output = Command::new(env!("CARGO")).args(arguments).args(["--offline", "--locked"]).output()?;
    ensure!(output.status.success(), "cargo {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn crates_depend_downwards_only() -> Result<()> {
    let metadata: Value = serde_json::from_str(&cargo(&["metadata", "--format-version=1", "--no-deps"])?)?;
    let mut uses: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in metadata["packages"].as_array().context("packages")? {
        let dependencies = package["dependencies"].as_array().context("dependencies")?;
        let normal = dependencies.iter().filter(|dependency| dependency["kind"].is_null());
        uses.insert(
            own(&package["name"]).unwrap_or_default(),
            normal.filter_map(|dependency| own(&dependency["name"])).collect(),
        );
    }
    for (name, allowed) in ALLOWED {
        let dependencies = uses.get(name).with_context(|| format!("there is no crate tidewatch-{name}"))?;
        let wrong: Vec<_> = dependencies.iter().filter(|other| !allowed.contains(other)).collect();
        ensure!(wrong.is_empty(), "tidewatch-{name} depends on {wrong:?}: move what it needs downwards");
    }
    Ok(())
}

#[test]
fn planner_builds_without_kube_client_and_tokio() -> Result<()> {
    let tree = cargo(&["tree", "--package=tidewatch-planner", "--edges=normal", "--prefix=none"])?;
    for crate_name in ["kube-client", "tokio", "hyper", "reqwest"] {
        let found = tree.lines().find(|line| line.split(' ').next() == Some(crate_name));
        ensure!(found.is_none(), "the planner brings {crate_name}");
    }
    Ok(())
}
