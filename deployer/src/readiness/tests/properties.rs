use proptest::{collection::vec, prelude::*, sample::select, test_runner::Config};

use super::*;

const KINDS: [(&str, &str); 13] = [
    ("apps/v1", "Deployment"),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "DaemonSet"),
    ("batch/v1", "Job"),
    ("v1", "Pod"),
    ("v1", "PersistentVolumeClaim"),
    ("v1", "Service"),
    ("v1", "ConfigMap"),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
    ("apiregistration.k8s.io/v1", "APIService"),
    ("example.com/v1", "Buoy"),
    ("gateway.networking.k8s.io/v1", "Gateway"),
    ("v1", "Namespace"),
];

fn json_value() -> impl Strategy<Value = Value> {
    const KEYS: &str = "metadata spec status name generation observedGeneration conditions type reason message \
        replicas updatedReplicas availableReplicas readyReplicas desiredNumberScheduled updatedNumberScheduled numberAvailable \
        failed suspend paused updateStrategy rollingUpdate partition phase state description containers initContainers \
        containerStatuses initContainerStatuses waiting terminated running lastState ready exitCode image loadBalancer ingress ip \
        hostname annotations deletionTimestamp creationTimestamp managedFields manager operation time volumeBindingMode";
    const TEXTS: &str = "True False Unknown Ready Available Established NamesAccepted Progressing ReplicaFailure Complete Failed \
        FailureTarget Stalled PodScheduled Unschedulable ImagePullBackOff CrashLoopBackOff InvalidImageName ErrImageNeverPull \
        CreateContainerConfigError Bound Pending Lost Running Succeeded LoadBalancer OnDelete Warning Error Processing Deleting \
        web 1970-01-01T00:00:10Z Apply";
    let key = select(KEYS.split_whitespace().collect::<Vec<_>>());
    let text = select(TEXTS.split_whitespace().collect::<Vec<_>>());
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        prop_oneof![any::<i64>(), -1i64..4].prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text.prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((key.clone(), inner), 0..6)
                .prop_map(|fields| fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()),
        ]
    })
}

fn object() -> impl Strategy<Value = Value> {
    let metadata = prop_oneof![
        json_value(),
        (0i64..4).prop_map(|generation| json!({"name": "x", "generation": generation}))
    ];
    let condition = (json_value(), json_value(), json_value())
        .prop_map(|(a, b, c)| json!({"type": a, "status": b, "observedGeneration": c}));
    let status = prop_oneof![
        json_value(),
        (vec(condition, 0..3), json_value(), 0i64..4).prop_map(
            |(c, state, seen)| json!({"conditions": c, "state": state, "observedGeneration": seen})
        )
    ];
    (select(&KINDS[..]), metadata, json_value(), status).prop_map(|((api_version, kind), metadata, spec, status)| {
        json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec, "status": status})
    })
}

fn cause(reported: &ObjectReadiness) -> Option<&Cause> {
    match reported {
        ObjectReadiness::Processing { cause }
        | ObjectReadiness::Warning { cause }
        | ObjectReadiness::Error { cause } => Some(cause),
        ObjectReadiness::Ready | ObjectReadiness::Unknown => None,
    }
}

fn ready_objects() -> Vec<Value> {
    let good = |api_version: &str, kind: &str, spec: Value, mut status: Value| {
        status["observedGeneration"] = 2.into();
        json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "x", "generation": 2}, "spec": spec, "status": status})
    };
    let condition = |types: &[&str]| json!({"conditions": types.iter().map(|t| json!({"type": t, "status": "True"})).collect::<Vec<_>>()});
    vec![
        good(
            "apps/v1",
            "Deployment",
            json!({}),
            json!({"replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}),
        ),
        good(
            "apps/v1",
            "StatefulSet",
            json!({}),
            json!({"replicas": 1, "updatedReplicas": 1, "readyReplicas": 1}),
        ),
        good("apps/v1", "DaemonSet", json!({}), json!({})),
        good("batch/v1", "Job", json!({}), condition(&["Complete"])),
        good("v1", "Pod", json!({}), condition(&["Ready"])),
        good("v1", "PersistentVolumeClaim", json!({}), json!({"phase": "Bound"})),
        good("v1", "Service", json!({}), json!({})),
        good(
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            json!({}),
            condition(&["NamesAccepted", "Established"]),
        ),
        good("apiregistration.k8s.io/v1", "APIService", json!({}), condition(&["Available"])),
        good("example.com/v1", "Buoy", json!({}), condition(&["Ready"])),
        good("example.com/v1", "Buoy", json!({}), json!({"state": "Ready"})),
    ]
}

#[test]
fn readiness_is_lost_with_a_new_generation() {
    for mut object in ready_objects() {
        let say = |object: &Value| readiness(object, &Facts::default(), at(0));
        assert_eq!(say(&object), ObjectReadiness::Ready, "{object}");
        object["metadata"]["generation"] = 3.into();
        assert!(matches!(say(&object), ObjectReadiness::Processing { .. }), "{object}");
    }
}

#[test]
fn a_restart_cycle_keeps_one_cause() {
    let image = |reason: &str, n: i64| {
        json!({"name": "web", "image": "i:1", "ready": false, "restartCount": n,
               "state": {"waiting": {"reason": reason, "message": format!("Back-off {n}s pulling")}}})
    };
    let ended =
        json!({"terminated": {"reason": "Error", "exitCode": 1, "finishedAt": "2026-01-01T00:00:00Z"}});
    let crash = |state: Value, n: i64| json!({"name": "web", "ready": false, "restartCount": n, "state": state, "lastState": ended});
    let circles = [
        vec![
            image("ErrImagePull", 1),
            image("ImagePullBackOff", 1),
            image("ErrImagePull", 2),
            image("ImagePullBackOff", 9),
        ],
        vec![
            // The first restart starts the cycle.
            json!({"name": "web", "ready": false, "restartCount": 1, "state": ended}),
            crash(
                json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting"}}),
                1,
            ),
            crash(json!({"running": {"startedAt": "2026-01-01T00:00:10Z"}}), 2),
            crash(ended.clone(), 3),
            crash(json!({"waiting": {"reason": "RunContainerError"}}), 4),
            crash(
                json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting"}}),
                40,
            ),
        ],
    ];
    for circle in circles {
        let reported: Vec<_> = circle
            .into_iter()
            .enumerate()
            .map(|(turn, container)| {
                let pods = [json!({"metadata": {"name": format!("x-{turn}")}, "status": {"phase": "Running", "containerStatuses": [container]}})];
                let facts = Facts { pods: &pods, not_ready_since: Some(at(0)), ..Facts::default() };
                let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}});
                readiness(&object, &facts, at(1))
            })
            .collect();
        assert!(
            cause(&reported[0]).is_some() && reported.windows(2).all(|two| two[0] == two[1]),
            "{reported:#?}"
        );
    }
}

proptest! {
    #![proptest_config(Config::with_cases(256))]

    #[test]
    fn any_json_gets_a_bounded_stable_verdict(
        object in prop_oneof![object(), json_value()],
        pods in vec(prop_oneof![object(), json_value()], 0..3),
        class in proptest::option::of(json_value()),
        since in proptest::option::of(-10i64..10),
        now in prop_oneof![Just(Timestamp::MIN), Just(Timestamp::MAX), (0i64..5_000).prop_map(at)],
        deadline in prop_oneof![Just(Duration::ZERO), Just(Duration::MAX), Just(DEADLINE)],
    ) {
        let facts = Facts {
            pods: &pods,
            storage_class: class.as_ref(),
            not_ready_since: since.map(at),
            deadline,
            ..Facts::default()
        };
        let reported = readiness(&object, &facts, now);
        let _ = (module_cr(Some(&object)), deadline_end(&object, &facts, now));
        let text = cause(&reported).map(Cause::to_string).unwrap_or_default();
        prop_assert!(text.chars().count() < 2_000 && !text.contains(char::is_control), "{:?}", text);
        prop_assert_eq!(readiness(&object, &facts, now), reported);
    }

    #[test]
    fn only_the_newest_generation_is_ready(object in object()) {
        let generation = object["metadata"]["generation"].as_i64();
        let observed = object["status"]["observedGeneration"].as_i64();
        if let (Some(generation), Some(observed)) = (generation, observed)
            && observed < generation
        {
            prop_assert_ne!(readiness(&object, &Facts::default(), at(0)), ObjectReadiness::Ready);
            prop_assert_ne!(module_cr(Some(&object)).state, State::Ready);
        }
    }

    #[test]
    fn the_cause_is_stable_while_progress_is_undecided(
        (a, b) in (0i64..4, 0i64..4),
        wanted in 4i64..9,
        kind in select(vec!["Deployment", "StatefulSet", "DaemonSet"]),
        (mut pods, turn) in (vec((0i64..50, select(vec!["ImagePullBackOff", "CrashLoopBackOff", "ContainerCreating"])), 0..4), any::<bool>()),
    ) {
        let say = |available: i64, pods: &[(i64, &str)], names: &str| {
            let pods: Vec<_> = pods.iter().enumerate().map(|(at, (restarts, reason))| json!({
                "metadata": {"name": format!("{names}-{at}")},
                "status": {"phase": "Pending", "containerStatuses": [{"name": "web", "image": "i:1", "ready": false,
                    "restartCount": restarts + available, "state": {"waiting": {"reason": reason, "message": format!("back-off {available}s")}}}]}
            })).collect();
            let mut conditions = vec![json!({"type": "Progressing", "status": "True", "message": available.to_string()}),
                                      json!({"type": "Available", "status": "False", "message": names})];
            if turn && names == "b" {
                conditions.reverse();
            }
            let object = json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "x", "generation": 1},
                "spec": {"replicas": wanted},
                "status": {"observedGeneration": 1, "replicas": wanted, "updatedReplicas": wanted, "readyReplicas": available,
                           "availableReplicas": available, "desiredNumberScheduled": wanted + available,
                           "updatedNumberScheduled": wanted, "numberAvailable": available, "conditions": conditions}});
            let facts = Facts { pods: &pods, not_ready_since: Some(at(0)), ..Facts::default() };
            readiness(&object, &facts, at(available))
        };
        let first = say(a, &pods, "a");
        pods.reverse();
        let second = say(b, &pods, "b");
        prop_assert!(cause(&first).is_some());
        prop_assert_eq!(first, second);
    }

    #[test]
    fn the_order_of_objects_does_not_matter(
        all in vec((object(), any::<bool>()), 0..6).prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
    ) {
        let verdict = |all: &[(Value, bool)]| {
            let judged: Vec<_> = all
                .iter()
                .filter_map(|(object, late)| {
                    let facts = Facts { not_ready_since: Some(at(0)), ..Facts::default() };
                    let reported = readiness(object, &facts, at(if *late { 10_000 } else { 1 }));
                    Some((ObjectRef::of(object)?, reported))
                })
                .collect();
            let error = judged.iter().any(|(_, reported)| matches!(reported, ObjectReadiness::Error { .. }));
            (combine(None, judged.iter().map(|(object, reported)| (object, reported))), error)
        };
        let (first, error) = verdict(&all.0);
        prop_assert_eq!(matches!(first, Readiness::Error(_)), error);
        prop_assert_eq!(verdict(&all.1).0, first);
    }
}
