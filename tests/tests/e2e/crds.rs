//! Tidewatch's CRDs accept and reject the same objects as the Go manager's.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use tidewatch_real_only::real_only;
use tidewatch_tests::{
    env,
    verdicts::{self, Mismatch, Whose},
};

async fn mismatches(crds: &[CustomResourceDefinition], whose: Whose) -> Result<Vec<Mismatch>> {
    verdicts::check(&env::shared().await?.kcp.client()?, crds, whose).await
}

fn none(found: &[Mismatch]) -> Result<()> {
    let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
    ensure!(found.is_empty(), "{} verdicts differ:\n{}", found.len(), lines.join("\n"));
    Ok(())
}

#[real_only("the CRDs have rules in CEL")]
#[tokio::test]
async fn own_crds_give_the_recorded_verdicts() -> Result<()> {
    none(&mismatches(&tidewatch_api::crds::all(), Whose::Ours).await?)
}

/// `KLM_CRDS=<folder>`, relative to the checkout, checks the table against the Go manager's CRDs.
#[tokio::test]
async fn go_manager_crds_give_the_recorded_verdicts() -> Result<()> {
    let Some(folder) = std::env::var_os("KLM_CRDS") else {
        eprintln!("KLM_CRDS is not set: nothing to compare with");
        return Ok(());
    };
    let crds = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder))?;
    let kinds = |crds: &[CustomResourceDefinition]| {
        let mut kinds: Vec<String> = crds.iter().map(|crd| crd.spec.names.kind.clone()).collect();
        kinds.sort();
        kinds
    };
    assert_eq!(kinds(&crds), kinds(&tidewatch_api::crds::all()), "all of the kinds");
    none(&mismatches(&crds, Whose::Theirs).await?)
}

/// Verifies that the check can fail.
#[tokio::test]
async fn a_looser_crd_is_noticed() -> Result<()> {
    let crd = tidewatch_api::crds::all().into_iter().find(|crd| crd.spec.names.kind == "ModuleReleaseMeta");
    let mut crd = crd.context("no ModuleReleaseMeta")?;
    let spec = crd.spec.versions[0]
        .schema
        .as_mut()
        .and_then(|schema| schema.open_api_v3_schema.as_mut()?.properties.as_mut()?.get_mut("spec"))
        .context("no schema of the spec")?;
    spec.x_kubernetes_validations = None;
    spec.properties.as_mut().context("no fields")?.remove("internal");

    let found = mismatches(&[crd], Whose::Ours).await?;
    let cases: Vec<&str> = found.iter().map(|mismatch| mismatch.case.as_str()).collect();
    let expected =
        ["meta-channels", "meta-both", "meta-neither", "meta-channels-null", "meta-internal-number"];
    assert_eq!(cases, expected);
    Ok(())
}

fn read(folder: &Path) -> Result<Vec<CustomResourceDefinition>> {
    let mut crds = Vec::new();
    for entry in folder.read_dir().with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let text = std::fs::read_to_string(&path)?;
            crds.push(
                serde_saphyr::from_str(&text).with_context(|| format!("cannot parse {}", path.display()))?,
            );
        }
    }
    Ok(crds)
}
