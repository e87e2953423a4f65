//! Tokens of `ServiceAccounts`: signed claims, as in Kubernetes.
//!
//! Nothing is stored per requested token, so their number needs no bound. A token ends with its time, its
//! `ServiceAccount`, or the object that it is bound to. A Secret of type [`SECRET_TYPE`] stores one without a time.

use std::{collections::BTreeMap, sync::Arc};

use base64::{
    Engine,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{
    decode::{decode, locate},
    log::Key,
    options,
    refusal::Refusal,
    render::render,
    request::{Answer, Outcome, Request},
    rules::writer,
    state::State,
};
use crate::{
    authz::{self, CREDENTIAL_ID, User},
    fields::managed::{FieldScope, Managed, Writer, nothing},
    json::{list, text},
    kinds::{Kind, builtin},
    object::{
        Stored,
        meta::{self, child_mut, metadata_mut},
        stored,
    },
    schema::validate::Cause,
};

/// Issuer, and audience of the API server.
const ISSUER: &str = "https://kubernetes.default.svc";
const GROUP: &str = "authentication.k8s.io";
/// Seconds.
const DEFAULT_LIFE: i64 = 3600;
/// Seconds.
const SHORTEST_LIFE: i64 = 600;
/// Seconds.
const LONGEST_LIFE: i64 = 1 << 32;
/// Seconds that kubelets ask for. Such a token of a pod lives longer, for clients that never read it again.
const LIFE_IN_PODS: i64 = 3607;
/// Seconds of such a token.
const LIFE_OF_OLD_CLIENTS: i64 = 365 * 24 * 3600;
/// Seconds that clocks may differ.
const LEEWAY: i64 = 60;
/// Bytes of a SHA-256 block.
const BLOCK: usize = 64;

/// Type of Secrets with a token.
pub(super) const SECRET_TYPE: &str = "kubernetes.io/service-account-token";
/// Annotation of such Secrets: the `ServiceAccount`.
const ACCOUNT: &str = "kubernetes.io/service-account.name";
/// Issuer of their tokens.
const SECRET_ISSUER: &str = "kubernetes/serviceaccount";

/// Signs tokens.
pub(super) type TokenKey = [u8; 32];

/// An object that a token is bound to.
struct Bound {
    /// Name of the claim.
    claim: &'static str,
    stored: Arc<Stored>,
}

/// Answers a `TokenRequest`. Like Kubernetes, a dry run gets a token, too.
pub(super) fn create(
    state: &mut State,
    kind: &Kind,
    request: &Request,
    body: &Value,
    now: Timestamp,
) -> Result<Outcome, Refusal> {
    let Some(key) = state.token_key else {
        return Err(Refusal::not_simulated("tokens of a cluster without a key"));
    };
    options::of_write(&request.verb, &request.query)?;
    let (target, sort) = (&request.target, builtin::token_request());
    let mut warnings = Vec::new();
    let mut object = decode(body.clone(), sort, &request.query, &mut warnings)?;
    let name = meta::name(&object).to_owned();
    metadata_mut(&mut object).remove("name");
    locate(&mut object, kind, target)?;
    child_mut(&mut object, "spec").entry("expirationSeconds").or_insert(json!(DEFAULT_LIFE));
    let owners = owners(sort, request, &mut object, now);
    state.check_namespace(kind, &target.namespace, &target.name)?;
    let invalid = |name: &str, cause: Cause| Err(Refusal::invalid(&sort.kind, GROUP, name, &[cause]));
    if !name.is_empty() && name != target.name {
        let why = "must match the service account name if specified";
        return invalid(&target.name, Cause::invalid("metadata.name", &name.into(), why));
    }
    let account = state.objects.lookup(kind, &target.namespace, &target.name)?;
    let uid = account.uid.to_string();
    if let Some(given) = meta::text(&object, "uid").filter(|given| *given != uid) {
        let why = format!(
            "the UID in the token request ({given}) does not match the UID of the service account ({uid})"
        );
        return Err(Refusal::conflict(&sort.kind, GROUP, &target.name, &why));
    }
    let life = &object["spec"]["expirationSeconds"];
    let seconds = life.as_i64().unwrap_or(i64::MAX);
    let limits = [
        (seconds < SHORTEST_LIFE, "may not specify a duration less than 10 minutes"),
        (seconds > LONGEST_LIFE, "may not specify a duration larger than 2^32 seconds"),
    ];
    if let Some((_, why)) = limits.iter().find(|(is_wrong, _)| *is_wrong) {
        return invalid("", Cause::invalid("spec.expirationSeconds", life, why));
    }
    let bound = bound(state, request, &object["spec"]["boundObjectRef"])?;

    let spec = child_mut(&mut object, "spec");
    spec.entry("boundObjectRef").or_insert(Value::Null);
    if spec.get("audiences").is_none_or(|audiences| list(audiences).is_empty()) {
        spec.insert("audiences".into(), json!([ISSUER]));
    }
    let after = |seconds: i64| now.as_second().saturating_add(seconds);
    let is_in_pod = bound.as_ref().is_some_and(|bound| bound.claim == "pod") && seconds == LIFE_IN_PODS;
    let is_extended = is_in_pod && list(&spec["audiences"]).iter().all(|audience| audience == ISSUER);
    let mut about = about(&account, bound.as_ref());
    if is_extended {
        about["warnafter"] = after(seconds).into();
    }
    let claims = json!({
        "aud": spec["audiences"], "exp": after(if is_extended { LIFE_OF_OLD_CLIENTS } else { seconds }),
        "iat": now.as_second(), "iss": ISSUER, "jti": state.objects.uid().to_string(), "kubernetes.io": about,
        "nbf": now.as_second(), "sub": authz::service_account(&target.namespace, &target.name),
    });
    let metadata = metadata_mut(&mut object);
    metadata.insert("name".into(), target.name.clone().into());
    metadata.insert("uid".into(), uid.into());
    metadata.insert("creationTimestamp".into(), stored::time(now.as_second()));
    owners.put(&mut object);
    let status = json!({"token": signed(&key, &claims), "expirationTimestamp": stored::time(after(seconds))});
    object["status"] = status;
    Ok(Outcome::Object(Answer { code: 201, object, warnings, kind: None }))
}

/// The request's fields have an owner, although nothing is stored.
fn owners(sort: &Kind, request: &Request, object: &mut Value, now: Timestamp) -> Managed {
    metadata_mut(object).remove("managedFields");
    let mut managed = Managed::default();
    let before = nothing(&sort.api_version(), &sort.kind, sort.zero());
    managed.update(&before, object, sort.schema(), &writer(sort, request), now.as_second());
    managed
}

fn bound(state: &State, request: &Request, reference: &Value) -> Result<Option<Bound>, Refusal> {
    if reference.is_null() {
        return Ok(None);
    }
    let (kind, name) = (text(reference, "kind"), text(reference, "name"));
    let version = text(reference, "apiVersion");
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let (claim, plural) = match (group, kind) {
        ("", "Pod") => ("pod", "pods"),
        ("", "Secret") => ("secret", "secrets"),
        ("", "Node") => return Err(Refusal::not_simulated("tokens that are bound to nodes")),
        _ => {
            let message = format!("cannot bind token to object of type {group}/{version}, Kind={kind}");
            return Err(Refusal::bad_request(message));
        }
    };
    let sort = builtin::find("", "v1", plural).ok_or_else(Refusal::unknown_path)?;
    let stored = state.objects.lookup(sort, &request.target.namespace, name)?;
    let account = &request.target.name;
    if claim == "pod" && render(sort, &stored)["spec"]["serviceAccountName"] != **account {
        return Err(Refusal::bad_request(format!(
            "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
        )));
    }
    let (given, uid) = (text(reference, "uid"), stored.uid.to_string());
    if !given.is_empty() && given != uid {
        let why = format!(
            "the UID in the bound object reference ({given}) does not match the UID in record. The object might have \
             been deleted and then recreated"
        );
        return Err(Refusal::conflict(kind, "", name, &why));
    }
    Ok(Some(Bound { claim, stored }))
}

/// Kubernetes' own claims.
fn about(account: &Stored, bound: Option<&Bound>) -> Value {
    let reference = |stored: &Stored| json!({"name": &**stored.name(), "uid": stored.uid.to_string()});
    let mut about = json!({"namespace": &**account.namespace(), "serviceaccount": reference(account)});
    if let Some(Bound { claim, stored }) = bound {
        about[*claim] = reference(stored);
        // Its Node need not exist.
        let object = stored.render();
        let node = object.pointer("/spec/nodeName").and_then(Value::as_str).filter(|node| !node.is_empty());
        if let Some(node) = node {
            about["node"] = json!({"name": node});
        }
    }
    about
}

/// Fills a Secret with its token, like `serviceaccount-token-controller`. A Secret without its `ServiceAccount` is
/// deleted.
pub(super) fn fill(state: &mut State, at: &Key, now: Timestamp) {
    let (Some(key), Some(secret)) = (state.token_key, state.objects.get(at).cloned()) else { return };
    let (Some(kind), Some(accounts)) = (state.served.kind_of(at), builtin::find("", "v1", "serviceaccounts"))
    else {
        return;
    };
    let mut object = render(&kind, &secret);
    let name = text(&object["metadata"]["annotations"], ACCOUNT).to_owned();
    let Some(account) = state.objects.find(accounts, &at.namespace, &name).cloned() else {
        state.remove(at);
        return;
    };
    let uid = account.uid.to_string();
    let claims = json!({
        "iss": SECRET_ISSUER, "sub": authz::service_account(&at.namespace, &name),
        "kubernetes.io/serviceaccount/namespace": &*at.namespace,
        "kubernetes.io/serviceaccount/secret.name": &*at.name,
        "kubernetes.io/serviceaccount/service-account.name": name,
        "kubernetes.io/serviceaccount/service-account.uid": uid,
    });
    let root = builtin::find("", "v1", "configmaps")
        .and_then(|maps| state.objects.find(maps, &at.namespace, "kube-root-ca.crt"))
        .map(|map| text(&map.render()["data"], "ca.crt").to_owned());
    let encoded = |text: &str| Value::from(BASE64_STANDARD.encode(text));
    let data = child_mut(&mut object, "data");
    data.insert("token".into(), encoded(&signed(&key, &claims)));
    data.insert("namespace".into(), encoded(&at.namespace));
    data.insert("ca.crt".into(), encoded(&root.unwrap_or_default()));
    object["metadata"]["annotations"]["kubernetes.io/service-account.uid"] = uid.into();
    let writer = Writer {
        manager: "kube-controller-manager".to_owned(),
        api_version: kind.api_version(),
        subresource: String::new(),
        scope: FieldScope::Whole,
    };
    state.write_as(&writer, &kind, &secret, object, now);
}

/// Deletes the token Secrets of a deleted `ServiceAccount`.
pub(super) fn remove_secrets(state: &mut State, account: &Key) {
    let Some(kind) = builtin::find("", "v1", "secrets") else { return };
    let secrets = state.objects.range(kind, &account.namespace).filter(|(_, stored)| {
        let object = stored.render();
        object["type"] == SECRET_TYPE && text(&object["metadata"]["annotations"], ACCOUNT) == &*account.name
    });
    let secrets: Vec<Key> = secrets.map(|(key, _)| key.clone()).collect();
    for key in &secrets {
        state.remove(key);
    }
}

/// User of the token that a Secret stores.
fn user_of_secret(state: &State, token: &str, claims: &Value) -> Option<User> {
    let claim = |field: &str| text(claims, &format!("kubernetes.io/serviceaccount/{field}"));
    let (namespace, name) = (claim("namespace"), claim("service-account.name"));
    let account = state.objects.find(builtin::find("", "v1", "serviceaccounts")?, namespace, name)?;
    let secret = state.objects.find(builtin::find("", "v1", "secrets")?, namespace, claim("secret.name"))?;
    let is_stored = text(&secret.render()["data"], "token") == BASE64_STANDARD.encode(token);
    let uid = account.uid.to_string();
    (is_stored && uid == claim("service-account.uid") && !account.is_deleted() && !secret.is_deleted())
        .then(|| User { uid, ..User::service_account(namespace, name) })
}

/// User of a valid token.
pub(super) fn user(state: &State, token: &str, now: Timestamp) -> Option<User> {
    let (signed, signature) = token.rsplit_once('.')?;
    if signature != self::signature(&state.token_key?, signed) {
        return None;
    }
    let (_, claims) = signed.split_once('.')?;
    let claims: Value = serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
    if claims["iss"] == SECRET_ISSUER {
        return user_of_secret(state, token, &claims);
    }
    let at = |claim: &str| claims[claim].as_i64();
    let now = now.as_second();
    if now - LEEWAY > at("exp")?
        || now + LEEWAY < at("nbf")?
        || !list(&claims["aud"]).contains(&json!(ISSUER))
    {
        return None;
    }
    let about = &claims["kubernetes.io"];
    let namespace = text(about, "namespace");
    for (claim, plural) in [("serviceaccount", "serviceaccounts"), ("pod", "pods"), ("secret", "secrets")] {
        let Some(reference) = about.get(claim) else { continue };
        let stored =
            state.objects.find(builtin::find("", "v1", plural)?, namespace, text(reference, "name"))?;
        let is_gone = stored.deleted_at().is_some_and(|deleted| deleted < now - LEEWAY);
        if is_gone || stored.uid.to_string() != text(reference, "uid") {
            return None;
        }
    }
    let account = &about["serviceaccount"];
    let user = User::service_account(namespace, text(account, "name"));
    Some(User { uid: text(account, "uid").to_owned(), extra: attributes(&claims), ..user })
}

fn attributes(claims: &Value) -> BTreeMap<String, Vec<String>> {
    let about = &claims["kubernetes.io"];
    let mut all = BTreeMap::from([(CREDENTIAL_ID.to_owned(), vec![format!("JTI={}", text(claims, "jti"))])]);
    for (claim, field) in [("pod", "name"), ("pod", "uid"), ("node", "name")] {
        let value = text(&about[claim], field);
        if !value.is_empty() {
            all.insert(format!("authentication.kubernetes.io/{claim}-{field}"), vec![value.to_owned()]);
        }
    }
    all
}

/// A JSON Web Token.
fn signed(key: &TokenKey, claims: &Value) -> String {
    let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!("{}.{}", part(&json!({"alg": "HS256"})), part(claims));
    let signature = signature(key, &text);
    format!("{text}.{signature}")
}

/// HMAC-SHA256 (RFC 2104).
fn signature(key: &TokenKey, text: &str) -> String {
    let padded = |padding: u8| {
        let mut block = [padding; BLOCK];
        block.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
        block
    };
    let inner = Sha256::new().chain_update(padded(0x36)).chain_update(text).finalize();
    let outer = Sha256::new().chain_update(padded(0x5c)).chain_update(inner).finalize();
    BASE64_URL_SAFE_NO_PAD.encode(outer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_those_of_rfc_4231() {
        let mut key = [0; 32];
        key.iter_mut().take(20).for_each(|byte| *byte = 0x0b);
        let expected = "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7";
        let found = BASE64_URL_SAFE_NO_PAD.decode(signature(&key, "Hi There")).unwrap();
        assert_eq!(hex::encode(found), expected);
    }
}
