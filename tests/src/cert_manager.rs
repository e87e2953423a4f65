//! cert-manager in tests: its own CRDs, and a small issuer in place of its controllers.
//!
//! The issuer makes what a `Certificate` asks for, and fails on every field that it does not know.

use std::{
    convert::Infallible,
    net::IpAddr,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result, bail, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
    core::{DynamicObject, GroupVersionKind},
    discovery::ApiResource,
};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType, SerialNumber,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tidewatch_certs::{
    PrivateKeyPem,
    secret::{TlsFiles, from_secret, to_secret},
};

use crate::wait;

const MANAGER: &str = "cert-manager";

/// Fields of a `Certificate` that the chart uses.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Spec {
    #[serde(default, rename = "isCA")]
    is_ca: bool,
    #[serde(default)]
    common_name: String,
    secret_name: String,
    duration: SignedDuration,
    renew_before: SignedDuration,
    private_key: PrivateKey,
    issuer_ref: IssuerRef,
    #[serde(default)]
    usages: Vec<String>,
    #[serde(default)]
    dns_names: Vec<String>,
    #[serde(default)]
    ip_addresses: Vec<IpAddr>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PrivateKey {
    algorithm: String,
    size: u32,
    encoding: String,
    rotation_policy: RotationPolicy,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
enum RotationPolicy {
    Never,
    Always,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct IssuerRef {
    kind: String,
    name: String,
}

/// The signer of a certificate.
enum Authority {
    SelfSigned,
    Ca(TlsFiles),
}

fn api(client: &Client, namespace: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("cert-manager.io", "v1", kind));
    Api::namespaced_with(client.clone(), namespace, &resource)
}

/// Requests a renewal of a `Certificate` as `cmctl renew` does, and waits until it is issued.
pub async fn renew(client: &Client, namespace: &str, name: &str) -> Result<()> {
    let certificates = api(client, namespace, "Certificate");
    let revision = async || anyhow::Ok(certificates.get(name).await?.data["status"]["revision"].as_u64());
    let before = revision().await?;
    let issuing =
        json!({"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "renew"});
    let patch = Patch::Merge(json!({"status": {"conditions": [issuing]}}));
    certificates.patch_status(name, &PatchParams::default(), &patch).await?;
    wait::until(&format!("{name} to be renewed"), Duration::from_secs(30), || async {
        Ok((revision().await? > before).then_some(()))
    })
    .await
}

/// Issues the due `Certificate`s of a namespace until an error.
pub async fn issue(client: Client, namespace: &str) -> Result<Infallible> {
    let certificates = api(&client, namespace, "Certificate");
    let issuers = api(&client, namespace, "Issuer");
    let secrets: Api<Secret> = Api::namespaced(client, namespace);
    loop {
        for certificate in certificates.list(&ListParams::default()).await? {
            let name = certificate.name_any();
            let spec: Spec =
                serde_json::from_value(certificate.data["spec"].clone()).context(name.clone())?;
            let present = secrets.get_opt(&spec.secret_name).await?;
            if present.is_some() && !is_due(&certificate) {
                continue;
            }
            // The CA may come later than the certificate that it signs.
            let Some(authority) = authority(&issuers, &secrets, &spec.issuer_ref).await? else { continue };
            let now = Timestamp::now();
            let files = sign(&spec, &key(&spec, present.as_ref())?, &authority, now)?;
            let secret = to_secret(&spec.secret_name, namespace, &files);
            let params = PatchParams::apply(MANAGER).force();
            secrets.patch(&spec.secret_name, &params, &Patch::Apply(secret)).await?;
            let status = Patch::Merge(json!({"status": status(&certificate, &spec, now)}));
            certificates.patch_status(&name, &PatchParams::default(), &status).await?;
        }
        wait::pause().await;
    }
}

fn is_due(certificate: &DynamicObject) -> bool {
    let conditions = || certificate.data["status"]["conditions"].as_array().into_iter().flatten();
    let generation = certificate.metadata.generation;
    let is_true = |condition: &Value, kind: &str| condition["type"] == kind && condition["status"] == "True";
    conditions().any(|condition| is_true(condition, "Issuing"))
        || !conditions().any(|condition| {
            is_true(condition, "Ready") && condition["observedGeneration"].as_i64() == generation
        })
}

async fn authority(
    issuers: &Api<DynamicObject>,
    secrets: &Api<Secret>,
    of: &IssuerRef,
) -> Result<Option<Authority>> {
    ensure!(of.kind == "Issuer", "an issuer of the kind {}", of.kind);
    let Some(issuer) = issuers.get_opt(&of.name).await? else { return Ok(None) };
    let spec = &issuer.data["spec"];
    if spec["selfSigned"].is_object() {
        return Ok(Some(Authority::SelfSigned));
    }
    let secret = spec["ca"]["secretName"].as_str().with_context(|| format!("the issuer {spec}"))?;
    let ca = secrets.get_opt(secret).await?;
    Ok(ca.as_ref().map(from_secret).transpose()?.map(Authority::Ca))
}

fn key(spec: &Spec, present: Option<&Secret>) -> Result<KeyPair> {
    let PrivateKey { algorithm, size, encoding, rotation_policy } = &spec.private_key;
    ensure!(
        (algorithm.as_str(), *size, encoding.as_str()) == ("ECDSA", 256, "PKCS8"),
        "a key {algorithm} {size} {encoding}"
    );
    match present {
        Some(secret) if *rotation_policy == RotationPolicy::Never => {
            Ok(KeyPair::from_pem(from_secret(secret)?.key_pem.as_str())?)
        }
        _ => Ok(KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?),
    }
}

fn sign(spec: &Spec, key: &KeyPair, authority: &Authority, now: Timestamp) -> Result<TlsFiles> {
    let params = params(spec, now)?;
    let (cert_pem, ca_bundle_pem) = match authority {
        Authority::SelfSigned => {
            let pem = params.self_signed(key)?.pem();
            (pem.clone(), pem)
        }
        Authority::Ca(ca) => {
            let ca_key = KeyPair::from_pem(ca.key_pem.as_str())?;
            let issuer = rcgen::Issuer::from_ca_cert_pem(&ca.cert_pem, ca_key)?;
            (params.signed_by(key, &issuer)?.pem(), ca.cert_pem.clone())
        }
    };
    Ok(TlsFiles { cert_pem, key_pem: PrivateKeyPem::new(key.serialize_pem()), ca_bundle_pem })
}

fn params(spec: &Spec, now: Timestamp) -> Result<CertificateParams> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    // cert-manager leaves the subject empty without a common name.
    if !spec.common_name.is_empty() {
        params.distinguished_name.push(DnType::CommonName, spec.common_name.as_str());
    }
    params.serial_number = Some(SerialNumber::from_slice(uuid::Uuid::new_v4().as_bytes()));
    params.not_before = SystemTime::from(now).into();
    params.not_after = SystemTime::from(now + spec.duration).into();
    params.subject_alt_names = spec.ip_addresses.iter().copied().map(SanType::IpAddress).collect();
    for name in &spec.dns_names {
        params.subject_alt_names.push(SanType::DnsName(name.as_str().try_into()?));
    }
    params.use_authority_key_identifier_extension = true;
    if spec.usages.is_empty() {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    }
    for usage in &spec.usages {
        match usage.as_str() {
            "digital signature" => params.key_usages.push(KeyUsagePurpose::DigitalSignature),
            "server auth" => params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth),
            other => bail!("the usage {other}"),
        }
    }
    if spec.is_ca {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages.push(KeyUsagePurpose::KeyCertSign);
    } else {
        params.is_ca = IsCa::ExplicitNoCa;
    }
    Ok(params)
}

fn status(certificate: &DynamicObject, spec: &Spec, now: Timestamp) -> Value {
    let ready = json!({"type": "Ready", "status": "True", "reason": "Ready", "message": "issued",
                       "lastTransitionTime": seconds(now), "observedGeneration": certificate.metadata.generation});
    let revision = certificate.data["status"]["revision"].as_u64().unwrap_or(0) + 1;
    json!({"conditions": [ready], "revision": revision, "notBefore": seconds(now), "notAfter": seconds(now + spec.duration),
           "renewalTime": seconds(now + spec.duration - spec.renew_before)})
}

fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
