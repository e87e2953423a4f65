//! The folder of YAML files.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tidewatch_oci::manifests_of;

/// Longest module name derived from a file name.
const MAX_NAME: usize = 50;
/// Shortest word of a module name.
const MIN_WORD: usize = 3;
/// Namespaces of every cluster.
const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// A YAML file that becomes one module.
#[derive(Clone, Debug)]
pub struct File {
    /// The path.
    pub path: PathBuf,
    /// The name of the module and of its runtime.
    pub module: String,
    /// The raw text.
    pub text: String,
    /// The readable objects, only for their number and namespaces.
    pub objects: Vec<Value>,
}

impl File {
    /// Returns the file name without the folder.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Namespaces that neither the file nor a cluster creates.
    pub fn foreign_namespaces(&self) -> BTreeSet<&str> {
        let own = |object: &&Value| object["apiVersion"] == "v1" && object["kind"] == "Namespace";
        let own: BTreeSet<&str> =
            self.objects.iter().filter(own).filter_map(|o| o["metadata"]["name"].as_str()).collect();
        let named = self.objects.iter().filter_map(|object| object["metadata"]["namespace"].as_str());
        named.filter(|name| !name.is_empty() && !own.contains(name) && !NAMESPACES.contains(name)).collect()
    }
}

/// Reads a folder's YAML files, sorted by name.
///
/// # Errors The folder is missing, empty or unreadable, or two files map to one module name.
pub fn read(folder: &Path) -> Result<Vec<File>> {
    let entries = fs::read_dir(folder).with_context(|| {
        format!("cannot read the folder {}: DIR must name one with YAML files", folder.display())
    })?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let extension = path.extension().unwrap_or_default();
        if path.is_file() && (extension == "yaml" || extension == "yml") {
            files.push(file(path)?);
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    ensure!(!files.is_empty(), "{} has no file *.yaml or *.yml: each becomes a module", folder.display());
    let modules: BTreeSet<&str> = files.iter().map(|file| file.module.as_str()).collect();
    ensure!(
        modules.len() == files.len(),
        "two files of {} give one module name: rename one",
        folder.display()
    );
    Ok(files)
}

fn file(path: PathBuf) -> Result<File> {
    // The user trusts this folder. The engine applies its own 32 MiB limit.
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let module = module_name(&path.file_stem().unwrap_or_default().to_string_lossy());
    let length = module.len();
    ensure!(
        (1..=MAX_NAME).contains(&length),
        "{} gives a module name of {length} letters: rename it",
        path.display()
    );
    // The module reports unreadable objects.
    let objects = manifests_of(text.as_bytes(), "").unwrap_or_default();
    Ok(File { path, module, text, objects })
}

/// Derives a module name with words of at least three letters. Short words are joined with their neighbour;
/// digits become letters.
fn module_name(stem: &str) -> String {
    let mut name = String::new();
    let mut last = 0;
    for word in stem.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()) {
        if last >= MIN_WORD && word.len() >= MIN_WORD {
            name.push('-');
            last = 0;
        }
        last += word.len();
        name.extend(word.bytes().map(|byte| match byte {
            b'0'..=b'9' => char::from(byte - b'0' + b'a'),
            letter => char::from(letter.to_ascii_lowercase()),
        }));
    }
    while !name.is_empty() && last < MIN_WORD {
        name.push('x');
        last += 1;
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_files_name_becomes_the_module_name() {
        for (stem, module) in [
            ("gatekeeper", "gatekeeper"),
            ("argo-cd", "argocd"),
            ("2-Core.v1_x-eventing", "ccorevbx-eventing"),
            ("ingress-nginx", "ingress-nginx"),
            ("a--", "axx"),
            ("--", ""),
        ] {
            assert_eq!(module_name(stem), module);
        }
    }

    #[test]
    fn a_folder_without_yaml_files_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = |path: &Path| format!("{:#}", read(path).unwrap_err());
        assert!(error(&folder.path().join("none")).contains("DIR must name one with YAML files"));
        fs::write(folder.path().join("README.md"), "x").unwrap();
        assert!(error(folder.path()).contains("has no file *.yaml or *.yml"));
        for name in ["b.yml", "a.yaml"] {
            fs::write(folder.path().join(name), "{apiVersion: v1, kind: Namespace, metadata: {name: n}}")
                .unwrap();
        }
        let names: Vec<String> = read(folder.path()).unwrap().iter().map(File::name).collect();
        assert_eq!(names, ["a.yaml", "b.yml"]);
        fs::write(folder.path().join("A.yml"), "").unwrap();
        assert!(error(folder.path()).contains("one module name"));
    }

    #[test]
    fn namespaces_missing_from_the_file_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.yaml");
        let map = |namespace: &str| {
            format!(
                "---\n{{apiVersion: v1, kind: ConfigMap, metadata: {{name: x, namespace: {namespace}}}}}\n"
            )
        };
        let own = "{apiVersion: v1, kind: Namespace, metadata: {name: own}}\n";
        fs::write(&path, [own, &map("own"), &map("default"), &map("theirs"), &map("theirs")].concat())
            .unwrap();
        let file = file(path).unwrap();
        assert_eq!((file.objects.len(), file.foreign_namespaces()), (5, BTreeSet::from(["theirs"])));
    }
}
