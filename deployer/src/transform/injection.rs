use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use serde_json::{Map, Value};
use tidewatch_api::{
    names::{annotations, labels},
    object::{Gvk, ObjectRef},
};

use super::TransformError;

/// The only module with KCP data.
pub const DEPLOYER: &str = "deployer";

/// Data of a KCP Secret, or the reason why it is withheld.
pub type Injected = Result<Map<String, Value>, String>;

/// Returns the KCP Secret that an object requests: its own name.
#[must_use]
pub fn requested_secret(module: &str, object: &Value) -> Option<String> {
    let id = ObjectRef::of(object)?;
    let is_request = module == DEPLOYER
        && id.gvk == Gvk::of("v1", "Secret")
        && object["metadata"]["annotations"][annotations::INJECT_DATA_FROM_KCP] == "true";
    is_request.then_some(id.name)
}

/// Returns the data of a Secret labelled for this module.
///
/// # Errors
/// Reason, without data.
pub fn secret_data(module: &str, secret: Option<&Secret>) -> Injected {
    let Some(secret) = secret else { return Err("there is no Secret of that name there".into()) };
    match secret.labels().get(labels::MODULE_NAME) {
        Some(named) if named == module => match serde_json::to_value(&secret.data) {
            Ok(Value::Object(data)) => Ok(data),
            _ => Ok(Map::new()),
        },
        Some(_) => Err(format!("its label {} names another module", labels::MODULE_NAME)),
        None => Err(format!("it has no label {}", labels::MODULE_NAME)),
    }
}

/// Hashes the injected data; 0 for none.
#[must_use]
pub fn injected_hash(injected: &BTreeMap<String, Injected>) -> u64 {
    let data: Vec<_> = injected.iter().filter_map(|(name, data)| Some((name, data.as_ref().ok()?))).collect();
    if data.is_empty() {
        return 0;
    }
    xxhash_rust::xxh3::xxh3_64(&serde_json::to_vec(&data).unwrap_or_default())
}

pub(super) fn inject(
    object: &mut Value,
    module: &str,
    injected: &BTreeMap<String, Injected>,
) -> Result<(), TransformError> {
    let Some(name) = requested_secret(module, object) else { return Ok(()) };
    match injected.get(&name) {
        Some(Ok(data)) => {
            object["data"] = Value::Object(data.clone());
            // The API server would let `stringData` override it.
            if let Some(object) = object.as_object_mut() {
                object.remove("stringData");
            }
            Ok(())
        }
        Some(Err(why)) => Err(TransformError::Injection { name, why: why.clone() }),
        None => Err(TransformError::Injection { name, why: "it was not read".into() }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn secret(annotation: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Secret", "data": {"own": "bw=="}, "stringData": {"a": "placeholder"},
               "metadata": {"name": "pull", "namespace": "n", "annotations": {annotations::INJECT_DATA_FROM_KCP: annotation}}})
    }

    #[test]
    fn changed_injected_data_changes_the_hash() {
        let data = |text: &str| Ok(Map::from_iter([("a".to_owned(), json!(text))]));
        let mark = |injected| injected_hash(&available(injected));
        assert_eq!(injected_hash(&BTreeMap::new()), 0);
        assert_eq!(mark(Err("it is not there".to_owned())), 0, "then nothing is applied");
        assert_eq!(mark(data("bw==")), mark(data("bw==")));
        assert!(mark(data("bw==")) != mark(data("Yg==")) && mark(data("bw==")) != 0);
    }

    fn available(injected: Injected) -> BTreeMap<String, Injected> {
        BTreeMap::from([("pull".to_owned(), injected)])
    }

    #[test]
    fn the_deployer_module_gets_requested_data() {
        let data = json!({"a": "Yg=="});
        let mut object = secret("true");
        inject(&mut object, DEPLOYER, &available(Ok(data.as_object().unwrap().clone()))).unwrap();
        assert_eq!((&object["data"], object.get("stringData")), (&data, None));
    }

    #[test]
    fn only_requesting_secrets_of_the_deployer_get_data() {
        let data = available(Ok(json!({"a": "Yg=="}).as_object().unwrap().clone()));
        let mut map = secret("true");
        map["kind"] = "ConfigMap".into();
        for (module, mut object) in
            [("other", secret("true")), ("", secret("true")), (DEPLOYER, secret("false")), (DEPLOYER, map)]
        {
            let before = object.clone();
            assert_eq!(requested_secret(module, &object), None);
            inject(&mut object, module, &data).unwrap();
            assert_eq!(object, before, "{module}");
        }
    }

    #[test]
    fn a_secret_is_given_only_to_its_named_module() {
        let secret = |labels: Value| -> Secret {
            serde_json::from_value(
                json!({"metadata": {"name": "pull", "labels": labels}, "data": {"a": "Yg=="}}),
            )
            .unwrap()
        };
        let labelled = secret(json!({labels::MODULE_NAME: DEPLOYER}));
        assert_eq!(
            secret_data(DEPLOYER, Some(&labelled)),
            Ok(json!({"a": "Yg=="}).as_object().unwrap().clone())
        );
        let refused = |secret: Option<&Secret>| secret_data(DEPLOYER, secret).unwrap_err();
        assert!(refused(Some(&secret(json!({labels::MODULE_NAME: "other"})))).contains("another module"));
        assert!(refused(Some(&secret(json!({})))).contains("no label"));
        assert!(refused(None).contains("no Secret"));
    }

    #[test]
    fn missing_injected_data_is_an_error() {
        for (injected, value) in
            [(available(Err("it is not there".into())), "it is not there"), (BTreeMap::new(), "not read")]
        {
            let mut object = secret("true");
            let error = inject(&mut object, DEPLOYER, &injected).unwrap_err().to_string();
            assert!(error.contains("'pull'") && error.contains(value), "{error}");
        }
    }
}
