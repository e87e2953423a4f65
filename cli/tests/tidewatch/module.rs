use std::{fs, path::Path};

use serde_json::Value;
use tidewatch_drain::Drain;
use tidewatch_fake_apiserver::registry::{Registry, Trouble};

use crate::tidewatch;

const MANIFEST: &str = "apiVersion: v1\nkind: Namespace\nmetadata: {name: buoys}\n";
/// The discard port; no process listens.
const NOBODY: &str = "127.0.0.1:9";

fn push(folder: &Path, to: &str, more: &[&str]) -> (Option<i32>, String, String) {
    let args = ["module", "push", "--version", "1.0.0", "--manifest", "module.yaml", "--to", to];
    let component = ["--component", "example.com/module/buoys"];
    let component = if more.contains(&"--component") { &[][..] } else { &component };
    tidewatch(folder, &[&args, component, more].concat())
}

fn folder(manifest: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("module.yaml"), manifest).unwrap();
    folder
}

#[test]
fn invalid_files_are_named_before_contacting_the_registry() {
    let port = |name: &str| format!("{{name: {name}, port: 80}}");
    let service = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: buoys}}\nspec: {{ports: [{}, {}]}}\n",
        port("a"),
        port("b")
    );
    for (manifest, told) in [
        ("kind: Namespace\n", "document 1 (line 1) is no Kubernetes object: apiVersion is missing"),
        (
            "apiVersion: batch/v1\nkind: Job\nmetadata: {generateName: once-}\n",
            "metadata.generateName 'once-'",
        ),
        (
            &service,
            "no API server takes Service buoys/web: spec.ports: [port=80,protocol=\"TCP\"] is there twice",
        ),
        (&format!("{MANIFEST}---\n{MANIFEST}"), "twice"),
    ] {
        let folder = folder(manifest);
        let (code, _, said) = push(folder.path(), NOBODY, &[]);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("nothing was pushed: module.yaml: ") && said.contains(told), "{said}");
        assert!(!said.contains(NOBODY), "{said}");
    }
    let folder = folder(MANIFEST);
    fs::write(folder.path().join("cr.yaml"), format!("{MANIFEST}---\n{MANIFEST}")).unwrap();
    let (_, _, said) = push(folder.path(), NOBODY, &["--default-cr", "cr.yaml"]);
    assert!(said.contains("nothing was pushed: cr.yaml: "), "{said}");
    let (_, _, said) = push(folder.path(), NOBODY, &["--default-cr", "none.yaml"]);
    assert!(said.contains("cannot read none.yaml"), "{said}");
}

#[test]
fn invalid_component_and_module_names_are_wrong_options() {
    let folder = folder(MANIFEST);
    for (component, told) in [
        ("example.com/module/s3", "'s3' cannot be a module's name"),
        ("example.com/module/my_module", "'my_module' cannot be a module's name"),
    ] {
        let (code, _, said) = push(folder.path(), NOBODY, &["--component", component]);
        assert!(code == Some(2) && said.contains(told) && said.contains("--module"), "{said}");
    }
    let (code, _, said) = push(folder.path(), NOBODY, &["--component", "example/module/buoys"]);
    assert!(
        code == Some(2) && said.contains("component name is not valid") && !said.contains(NOBODY),
        "{said}"
    );
    let (code, _, said) = push(folder.path(), "ftp://registry.example", &[]);
    assert!(code == Some(2) && said.contains("--to ftp://registry.example"), "{said}");
}

#[test]
fn an_unreachable_registry_is_named() {
    let (code, _, said) = push(folder(MANIFEST).path(), NOBODY, &[]);
    assert!(
        code == Some(1)
            && said.contains("cannot push to 127.0.0.1:9: registry 127.0.0.1:9 cannot be reached"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_with_the_default_custom_resource_is_written() {
    let drain = Drain::new();
    let registry = Registry::start(&drain).await.unwrap();
    let (to, folder) = (registry.url().trim_start_matches("http://").to_owned(), folder(MANIFEST));
    let cr = "apiVersion: buoys.example.com/v1\nkind: Buoy\nmetadata: {name: default}\nspec: {lit: true}\n";
    fs::write(folder.path().join("cr.yaml"), cr).unwrap();

    let (code, _, said) = push(folder.path(), &to, &["--default-cr", "cr.yaml"]);
    assert!(code == Some(0) && said.contains("--template-out"), "{said}");
    let options = ["--default-cr", "cr.yaml", "--template-out", "template.yaml", "-o", "json"];
    let (code, result, said) = push(folder.path(), &to, &options);
    assert_eq!((code, said.as_str()), (Some(0), ""));
    let result: Value = serde_json::from_str(&result).unwrap();
    assert_eq!(result["template"], "template.yaml");
    let template: Value =
        serde_saphyr::from_str(&fs::read_to_string(folder.path().join("template.yaml")).unwrap()).unwrap();
    assert_eq!(
        (&template["metadata"]["name"], &template["spec"]["data"]["spec"]["lit"]),
        (&"buoys-1.0.0".into(), &true.into())
    );

    fs::write(folder.path().join("template.yaml"), "mine").unwrap();
    let (code, _, said) = push(folder.path(), &to, &options);
    assert!(code == Some(1) && said.contains("template.yaml has other content; --overwrite"), "{said}");
    assert_eq!(fs::read_to_string(folder.path().join("template.yaml")).unwrap(), "mine");
    assert_eq!(push(folder.path(), &to, &[&options[..], &["--overwrite"]].concat()).0, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_push_names_the_sent_credentials() {
    let drain = Drain::new();
    let registry = Registry::start(&drain).await.unwrap();
    registry.set_trouble(Trouble { refuse: Some(401), ..Trouble::default() });
    let (to, folder) = (registry.url().trim_start_matches("http://").to_owned(), folder(MANIFEST));
    let (code, _, said) = push(folder.path(), &to, &[]);
    assert!(code == Some(1) && said.contains("refused access"), "{said}");
    assert!(
        said.contains("no credentials were sent") && said.contains(&format!("docker login {to}")),
        "{said}"
    );

    // "user:secret"
    let config = format!(r#"{{"auths": {{"{to}": {{"auth": "dXNlcjpzZWNyZXQ="}}, "other.example": {{}}}}}}"#);
    fs::write(folder.path().join("config.json"), config).unwrap();
    let (_, _, said) = push(folder.path(), &to, &[]);
    assert!(said.contains("config.json were refused") && !said.contains("secret"), "{said}");
    let (code, _, said) = push(folder.path(), &to, &["--registry-credentials", "none.json"]);
    assert!(
        code == Some(1) && said.contains("none.json") && said.contains("--registry-credentials"),
        "{said}"
    );
}
