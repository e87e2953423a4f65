//! `tidewatch module`: for module teams.

mod acceptable;
mod credentials;
mod template;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, bail};
use clap::Subcommand;
use serde_json::json;
use tidewatch_oci::{
    BaseUrl, ModulePackage, OciError, Progress, PushOptions, Registry, RegistryConfig, pack, push_with,
};
use tidewatch_telemetry::stdio;

use self::credentials::Found;
use crate::{args::usage, files, output::Format, progress::Bar};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Pack a module version as an OCI artifact with an OCM component descriptor, and push it.
    Push(Push),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Push {
    /// OCM component name, for example example.com/module/lighthouse
    #[arg(long, value_name = "NAME")]
    component: String,
    /// Name of the module in a ModuleTemplate [default: the last part of the component's name].
    #[arg(long, value_name = "NAME")]
    module: Option<String>,
    /// Version of the module, also the tag. The tag has '.build-' for '+'.
    #[arg(long = "version", value_name = "VERSION")]
    module_version: semver::Version,
    /// Kubernetes objects of the module (YAML).
    #[arg(long, value_name = "FILE")]
    manifest: PathBuf,
    /// Default custom resource of the module (YAML, one object). It is installed only if the ModuleTemplate
    /// has it in spec.data, as --template-out writes it.
    #[arg(long, value_name = "FILE")]
    default_cr: Option<PathBuf>,
    /// Write the ModuleTemplate of this version, with the default custom resource, to a file for kubectl
    /// apply.
    #[arg(long, value_name = "FILE")]
    template_out: Option<PathBuf>,
    /// Image that the module runs (repeatable).
    #[arg(long, value_name = "IMAGE")]
    image: Vec<String>,
    /// Registry to push to.
    #[arg(long, value_name = "HOST[:PORT][/PATH]")]
    to: String,
    /// Docker configuration file with the registry's credentials [default: config.json in `$DOCKER_CONFIG` or
    /// ~/.docker].
    #[arg(long, env = "TIDEWATCH_REGISTRY_CREDENTIALS", value_name = "FILE")]
    registry_credentials: Option<PathBuf>,
    /// Replace the version, and the file of --template-out, if they exist with other content.
    #[arg(long)]
    overwrite: bool,
    /// Use the registry without TLS. Loopback addresses need no permission.
    #[arg(long)]
    insecure: bool,
}

pub(crate) async fn run(command: Command, output: Format) -> anyhow::Result<()> {
    let Command::Push(push) = command;
    push.run(output).await
}

impl Push {
    async fn run(self, output: Format) -> anyhow::Result<()> {
        let (to, insecure) = (shown(&self.to), self.insecure_hosts());
        let base =
            BaseUrl::parse(&self.to, &insecure).map_err(|error| usage(&format!("--to {to}: {error}")))?;
        let module = self.module_name()?;
        let package = self.package(&base).context("nothing was pushed")?;
        let template = self.template_out.as_deref().map(|file| (file, template::yaml(module, &package)));
        if self.default_cr.is_some() && template.is_none() {
            stdio::note(
                "note: the default custom resource is installed only if the ModuleTemplate has it in spec.data; \
                 --template-out FILE writes one that has it",
            );
        }
        if let Some((file, Ok(yaml))) = &template {
            let there = std::fs::read_to_string(file).ok();
            if there.is_some_and(|there| there != *yaml && !self.overwrite) {
                bail!("nothing was pushed: {} has other content; --overwrite replaces it", file.display());
            }
        }
        let found = credentials::find(self.registry_credentials.as_deref(), base.registry())?;
        let credentials =
            found.credentials().map(|found| (base.registry().to_owned(), found)).into_iter().collect();
        let registry = Registry::new(RegistryConfig { insecure, credentials, ..RegistryConfig::default() })?;
        let bar = Arc::new(Bar::default());
        let options = PushOptions { overwrite: self.overwrite, progress: Some(progress(&bar)) };
        let pushed = push_with(&registry, &self.to, &package, &options).await;
        bar.finish();
        let pushed = pushed.map_err(|error| explained(error, &to, &found))?;
        let mut result = json!({
            "component": package.component_name,
            "version": package.version,
            "digest": pushed.digest.as_str(),
            "rawManifest": pushed.raw_manifest_digest.as_str(),
        });
        if let Some((file, yaml)) = template {
            let written = yaml.and_then(|yaml| files::write(file, &yaml));
            let written =
                written.context("the module is pushed, but its ModuleTemplate could not be written")?;
            result["template"] = json!(written);
        }
        output.print(&result)
    }

    fn insecure_hosts(&self) -> Vec<String> {
        let host = self.to.split_once("://").map_or(self.to.as_str(), |(_, rest)| rest).split('/').next();
        host.filter(|_| self.insecure).map(str::to_owned).into_iter().collect()
    }

    fn module_name(&self) -> anyhow::Result<&str> {
        let last = self.component.rsplit('/').next().unwrap_or_default();
        let module = self.module.as_deref().unwrap_or(last);
        if tidewatch_api::is_module_name(module) {
            return Ok(module);
        }
        Err(usage(&format!(
            "'{module}' cannot be a module's name: ModuleTemplates and ModuleReleaseMetas take words of three or more \
             lower-case letters, joined by '-', of 64 characters at most; name the module with --module"
        )))
    }

    /// All checks without the registry.
    fn package(&self, home: &BaseUrl) -> anyhow::Result<ModulePackage> {
        let mut package = ModulePackage {
            sources: Vec::new(),
            component_name: self.component.clone(),
            version: self.module_version.to_string(),
            raw_manifest: files::read(&self.manifest)?,
            default_cr: None,
            images: self.image.clone(),
        };
        acceptable::check(&package.raw_manifest).with_context(|| self.manifest.display().to_string())?;
        pack(&package, home).map_err(|error| of_file(error, &self.manifest))?;
        if let Some(file) = &self.default_cr {
            let text = files::read(file)?;
            acceptable::check(&text).with_context(|| file.display().to_string())?;
            package.default_cr = Some(text);
            pack(&package, home).map_err(|error| of_file(error, file))?;
        }
        Ok(package)
    }
}

/// Name errors concern an option, others the file.
fn of_file(error: OciError, file: &Path) -> anyhow::Error {
    if matches!(error, OciError::Invalid { subject: "component name" | "image reference", .. }) {
        return usage(&error.to_string());
    }
    let about_content = matches!(
        &error,
        OciError::Manifests { .. }
            | OciError::Invalid { subject: "manifest" | "default custom resource", .. }
    );
    let error = anyhow::Error::from(error);
    if about_content { error.context(file.display().to_string()) } else { error }
}

fn progress(bar: &Arc<Bar>) -> Progress {
    /// Bytes; smaller uploads are too quick.
    const LARGE: u64 = 1024 * 1024;
    let bar = Arc::clone(bar);
    Arc::new(move |sent, all| bar.show("pushing", sent, all, all >= LARGE))
}

fn explained(error: OciError, to: &str, found: &Found) -> anyhow::Error {
    let next = match &error {
        OciError::Exists { .. } => Some("give it a new version, or use --overwrite".to_owned()),
        OciError::Unauthorized { .. } => Some(found.next_step()),
        _ => None,
    };
    let error = anyhow::Error::from(error).context(format!("cannot push to {to}"));
    match next {
        Some(next) => error.context(next),
        None => error,
    }
}

/// Hides credentials in a registry's address.
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
    fn passwords_in_addresses_are_not_shown() {
        assert_eq!(shown("https://me:pw@registry.example/a@b"), "https://***@registry.example/a@b");
        assert_eq!(shown("me:p@w@registry.example"), "***@registry.example");
        assert_eq!(shown("localhost:5000/a"), "localhost:5000/a");
    }
}
