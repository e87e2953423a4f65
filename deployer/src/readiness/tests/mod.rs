mod golden;
mod properties;

use serde_json::json;
use tidewatch_api::{State, readiness::CrState};

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn object(api_version: &str, kind: &str, name: &str) -> ObjectRef {
    ObjectRef { gvk: Gvk::of(api_version, kind), namespace: "n".into(), name: name.into() }
}

fn processing(object: &ObjectRef, text: &str) -> ObjectReadiness {
    ObjectReadiness::Processing { cause: Cause { object: object.clone(), text: text.into() } }
}

fn error(object: &ObjectRef, text: &str) -> ObjectReadiness {
    ObjectReadiness::Error { cause: Cause { object: object.clone(), text: text.into() } }
}

#[test]
fn errors_outrank_and_the_root_cause_is_named() {
    let crd = object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "z");
    let (a, b) = (object("apps/v1", "Deployment", "a"), object("apps/v1", "Deployment", "b"));
    let cr = object("example.com/v1", "Buoy", "c");
    let all = |all: &[(&ObjectRef, ObjectReadiness)]| combine(None, all.iter().map(|(o, r)| (*o, r)));
    assert_eq!(all(&[]), Readiness::Ready);
    assert_eq!(all(&[(&a, ObjectReadiness::Ready), (&cr, ObjectReadiness::Unknown)]), Readiness::Ready);
    assert_eq!(
        all(&[
            (&b, processing(&b, "w")),
            (&cr, processing(&cr, "x")),
            (&crd, processing(&crd, "y")),
            (&a, processing(&a, "v"))
        ]),
        Readiness::Processing("CustomResourceDefinition n/z: y".into())
    );
    assert_eq!(
        all(&[
            (&crd, processing(&crd, "y")),
            (&cr, error(&cr, "x")),
            (&b, error(&b, "w")),
            (&a, ObjectReadiness::Ready)
        ]),
        Readiness::Error("Deployment n/b: w".into())
    );
    assert_eq!(all(&[(&cr, error(&cr, "x"))]), Readiness::Error("Buoy.example.com n/c: x".into()));
}

#[test]
fn a_failing_image_pull_escalates_to_an_error() {
    let web = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "n"},
                     "status": {"observedGeneration": 1}});
    let pod = |waiting: Value| {
        json!({"metadata": {"name": "web-1"}, "spec": {"containers": [{"name": "app", "image": "r.example/app:9"}]},
               "status": {"phase": "Pending", "containerStatuses": [{"name": "app", "ready": false, "state": {"waiting": waiting}}]}})
    };
    let reported = |reason: &str, now| {
        let pods = [pod(json!({"reason": reason, "message": "no such tag"}))];
        let facts = Facts { pods: &pods, not_ready_since: Some(at(0)), ..Facts::default() };
        match readiness(&web, &facts, at(now)) {
            ObjectReadiness::Processing { cause } => format!("Processing {cause}"),
            ObjectReadiness::Warning { cause } => format!("Warning {cause}"),
            ObjectReadiness::Error { cause } => format!("Error {cause}"),
            other => format!("{other:?}"),
        }
    };
    let pull = "Deployment n/web: container app cannot pull its image r.example/app:9 (ErrImagePull, ImagePullBackOff): no such tag";
    assert_eq!(reported("ErrImagePull", 5), format!("Processing {pull}"));
    assert_eq!(reported("ImagePullBackOff", 60), format!("Warning {pull}"));
    let late = pull.replace("container", "not ready within 10 minutes: container");
    assert_eq!(reported("ImagePullBackOff", 600), format!("Error {late}"));
    assert!(reported("CreateContainerConfigError", 60).starts_with("Warning "));
    assert!(reported("CrashLoopBackOff", 60).starts_with("Warning "));
    assert!(reported("ContainerCreating", 60).starts_with("Processing "));
    assert!(reported("InvalidImageName", 5).starts_with("Error "), "it can never start");
}

#[test]
fn a_warning_outranks_processing_but_no_error() {
    let web = object("apps/v1", "Deployment", "web");
    let warning = || ObjectReadiness::Warning { cause: Cause { object: web.clone(), text: "w".into() } };
    let all = |other: ObjectReadiness| {
        let claim = object("v1", "PersistentVolumeClaim", "a");
        combine(None, [(&web, &warning()), (&claim, &other)])
    };
    let claim = object("v1", "PersistentVolumeClaim", "a");
    let warned = Readiness::Warning("Deployment n/web: w".into());
    assert_eq!(all(ObjectReadiness::Ready), warned);
    assert_eq!(all(processing(&claim, "p")), warned);
    assert!(matches!(all(error(&claim, "e")), Readiness::Error(_)));
}

#[test]
fn a_named_manager_alone_decides_readiness() {
    let (web, job) = (object("apps/v1", "Deployment", "web"), object("batch/v1", "Job", "job"));
    let manager = Manager {
        group: "apps".into(),
        version: "v1beta9".into(),
        kind: "Deployment".into(),
        namespace: "n".into(),
        name: "web".into(),
    };
    let say = |manager: &Manager, of_web| {
        let failed = error(&job, "x");
        combine(Some(manager), [(&job, &failed), (&web, &of_web)])
    };
    assert_eq!(say(&manager, ObjectReadiness::Ready), Readiness::Ready);
    assert_eq!(say(&manager, ObjectReadiness::Unknown), Readiness::Ready);
    assert_eq!(say(&manager, processing(&web, "w")), Readiness::Processing("Deployment n/web: w".into()));
    for other in [
        Manager { name: "else".into(), ..manager.clone() },
        Manager { namespace: String::new(), ..manager.clone() },
        Manager { group: String::new(), ..manager.clone() },
        Manager { kind: "Job".into(), ..manager.clone() },
    ] {
        let reported = say(&other, ObjectReadiness::Ready);
        assert!(
            matches!(&reported, Readiness::Processing(text) if text.ends_with("is not there")),
            "{reported:?}"
        );
    }
    let nowhere = Manager { namespace: String::new(), ..manager };
    for namespace in ["default", ""] {
        assert!(is_manager(&nowhere, &ObjectRef { namespace: namespace.into(), ..web.clone() }));
    }
}

#[test]
fn an_exceeded_deadline_keeps_the_cause() {
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"type": "LoadBalancer"}});
    let facts = Facts { not_ready_since: Some(at(0)), ..Facts::default() };
    let text = |now| match readiness(&service, &facts, at(now)) {
        ObjectReadiness::Processing { cause } => format!("P {cause}"),
        ObjectReadiness::Error { cause } => format!("E {cause}"),
        other => format!("{other:?}"),
    };
    assert_eq!(text(599), "P Service s: its load balancer has no address yet");
    let late = "E Service s: not ready within 10 minutes: its load balancer has no address yet";
    assert_eq!((text(600).as_str(), text(60_000).as_str()), (late, late), "the text does not move");
}

#[test]
fn a_module_cr_shows_its_state_and_cause() {
    let cr = |status: Value| json!({"apiVersion": "example.com/v1", "kind": "Buoy", "metadata": {"name": "b", "generation": 2}, "status": status});
    let mut deleting = cr(json!({"state": "Ready"}));
    deleting["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let ready =
        |status: &str| json!([{"type": "Ready", "status": status, "reason": "Sunk", "message": "3 leaks"}]);
    for (cr, state, message) in [
        (None, State::Empty, ""),
        (Some(cr(Value::Null)), State::Empty, ""),
        (Some(cr(json!({"state": "Dancing"}))), State::Empty, ""),
        (Some(cr(json!({"state": ""}))), State::Empty, ""),
        (Some(cr(json!({"state": "Unmanaged"}))), State::Empty, ""),
        (Some(cr(json!({"state": "Ready", "description": "fine"}))), State::Ready, ""),
        (
            Some(cr(json!({"state": "Warning", "conditions": ready("False")}))),
            State::Warning,
            "Sunk: … leaks",
        ),
        (
            Some(cr(json!({"state": "Warning", "conditions": ready("True"), "description": "look"}))),
            State::Warning,
            "look",
        ),
        (Some(cr(json!({"state": "Error", "description": "no water"}))), State::Error, "no water"),
        (Some(cr(json!({"state": "Error"}))), State::Error, ""),
        (Some(cr(json!({"state": "Deleting", "message": "2 left"}))), State::Deleting, "… left"),
        (Some(cr(json!({"state": "Ready", "observedGeneration": 1}))), State::Processing, NOT_OBSERVED),
        (Some(cr(json!({"conditions": ready("True")}))), State::Ready, ""),
        (
            Some(cr(json!({"conditions": ready("False")}))),
            State::Processing,
            "its condition Ready does not hold (Sunk): … leaks",
        ),
        (
            Some(cr(json!({"conditions": [{"type": "Stalled", "status": "True"}]}))),
            State::Error,
            "its condition Stalled holds",
        ),
        (Some(deleting), State::Deleting, ""),
    ] {
        assert_eq!(module_cr(cr.as_ref()), CrState { state, message: message.into() }, "{cr:?}");
    }
}

#[test]
fn an_unread_manager_leaves_readiness_to_all_objects() {
    let web = object("apps/v1", "Deployment", "web");
    let judged =
        [(web.clone(), processing(&web, "w")), (object("batch/v1", "Job", "job"), ObjectReadiness::Ready)];
    let manager = |group: &str, kind: &str, name: &str| {
        let (group, kind, name) = (group.into(), kind.into(), name.into());
        Some(Manager { group, version: "v1".into(), kind, namespace: "n".into(), name })
    };
    let waits = Readiness::Processing("Deployment n/web: w".into());
    for (names, value) in [
        (None, waits.clone()),
        (manager("batch", "Job", "elsewhere"), waits.clone()),
        (manager("apps", "Deployment", "web"), waits),
        (manager("batch", "Job", "job"), Readiness::Ready),
    ] {
        assert_eq!(of_module(names.as_ref(), &judged), value, "{names:?}");
    }
}

#[test]
fn a_manager_outside_the_module_decides_readiness() {
    let own = object("apps/v1", "Deployment", "web");
    let manager = Manager {
        group: "apps".into(),
        version: "v1".into(),
        kind: "Deployment".into(),
        namespace: String::new(),
        name: "other".into(),
    };
    let other_workload =
        ObjectRef { namespace: "default".into(), ..object("apps/v1", "Deployment", "other") };
    let waits = [(own.clone(), processing(&own, "w")), (other_workload, ObjectReadiness::Ready)];
    assert_eq!(of_module(Some(&manager), &waits), Readiness::Ready);
}
