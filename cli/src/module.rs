//! `tidewatch module`: for teams that ship modules.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::json;
use tidewatch_engine::oci::{ModulePackage, OciError, Registry, RegistryConfig, push, push_new};

use crate::{files, output::Format};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Pack a module version as an OCI artifact with an OCM component descriptor, and push it.
    Push {
        /// OCM component name, for example example.com/module/lighthouse
        #[arg(long, value_name = "NAME")]
        component: String,
        /// The version, which is also the tag (where a '+' is written '.build-').
        #[arg(long = "version", value_name = "VERSION")]
        module_version: semver::Version,
        /// The module's Kubernetes objects (YAML).
        #[arg(long, value_name = "FILE")]
        manifest: PathBuf,
        /// Its default custom resource (YAML): one object.
        #[arg(long, value_name = "FILE")]
        default_cr: Option<PathBuf>,
        /// An image that the module runs (repeatable).
        #[arg(long, value_name = "IMAGE")]
        image: Vec<String>,
        /// The registry.
        #[arg(long, value_name = "HOST[:PORT][/PATH]")]
        to: String,
        /// Replace the version if it is there with other content.
        #[arg(long)]
        overwrite: bool,
        /// Talk to the registry without TLS (loopback needs no such permission).
        #[arg(long)]
        insecure: bool,
    },
}

pub(crate) async fn run(command: Command, output: Format) -> anyhow::Result<()> {
    let Command::Push { component, module_version, manifest, default_cr, image, to, overwrite, insecure } =
        command;
    let package = ModulePackage {
        sources: Vec::new(),
        component_name: component,
        version: module_version.to_string(),
        raw_manifest: files::read(&manifest)?,
        default_cr: default_cr.as_deref().map(files::read).transpose()?,
        images: image,
    };
    let host = to.split('/').next().unwrap_or_default().to_owned();
    let insecure = if insecure { vec![host] } else { Vec::new() };
    let registry = Registry::new(RegistryConfig { insecure, ..RegistryConfig::default() })?;
    let pushed = if overwrite {
        push(&registry, &to, &package).await
    } else {
        push_new(&registry, &to, &package).await
    };
    let pushed = pushed.map_err(|error| {
        let exists = matches!(error, OciError::Exists { .. });
        let error = anyhow::Error::from(error).context(format!("cannot push to {}", shown(&to)));
        if exists { error.context("give it a new version, or say --overwrite") } else { error }
    })?;
    output.print(&json!({
        "component": package.component_name,
        "version": package.version,
        "digest": pushed.digest.as_str(),
        "rawManifest": pushed.raw_manifest_digest.as_str(),
    }))
}

/// A registry as it may be shown: credentials do not belong into its address, and not into a log either.
fn shown(to: &str) -> String {
    let host = to.split_once("://").map_or(to, |(_, rest)| rest).split('/').next().unwrap_or_default();
    match host.rsplit_once('@') {
        Some((secret, _)) => to.replacen(secret, "***", 1),
        None => to.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_secret_is_not_shown() {
        assert_eq!(shown("https://me:pw@registry.example/a@b"), "https://***@registry.example/a@b");
        assert_eq!(shown("me:p@w@registry.example"), "***@registry.example");
        assert_eq!(shown("localhost:5000/a"), "localhost:5000/a");
    }
}
