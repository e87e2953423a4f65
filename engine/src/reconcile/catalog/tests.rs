use super::*;

const CAUSE: &str = "ModuleTemplate.operator.kyma-project.io kyma-system/";

fn event(name: &str) -> Cause {
    Cause::Event { epoch: "e".into(), seq: 1, watch: "w".into(), object: format!("{CAUSE}{name}") }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn catalogs() -> Catalogs {
    let catalogs = Catalogs::default();
    let objects = ["a", "b"].map(|name| {
        let body = json!({"kind": "ModuleTemplate", "metadata": {"name": name}});
        (("ModuleTemplate", name.to_owned()), body)
    });
    catalogs.put("harbour", 1, &View::new(objects.into()), (&[], 0), at(0));
    catalogs.set_said("harbour", true);
    catalogs
}

fn doubted(catalogs: &Catalogs) -> Option<Vec<String>> {
    let ids = catalogs.of("harbour").unwrap().doubted()?;
    Some(ids.into_iter().map(|(_, name)| name).collect())
}

#[test]
fn causes_name_what_they_are_about_or_all() {
    let of = |causes: &[Cause], count| named(Why { causes, count }).map(|named| named.len());
    assert_eq!(of(&[Cause::Start], 1), Some(0), "what has changed in KCP is known");
    assert_eq!(of(&[event("a"), event("b"), event("a")], 3), Some(2));
    assert_eq!(of(&[event("a"), Cause::SecondLook { object: format!("{CAUSE}b") }], 2), Some(2));
    assert_eq!(of(&[event("a")], 2), None, "of one nobody knows what it was");
    assert_eq!(of(&[event("")], 1), None, "all of the kind");
}

#[test]
fn what_is_doubted_is_doubted_until_it_was_looked_at() {
    let catalogs = catalogs();
    let doubt = |causes: &[Cause]| catalogs.doubt("harbour", named(Why { causes, count: causes.len() }));
    assert_eq!(doubted(&catalogs), Some(vec![]));
    doubt(&[event("b"), event("theirs")]);
    doubt(&[Cause::Start]);
    assert_eq!(doubted(&catalogs), Some(vec!["b".to_owned()]), "what is not of the catalog is not looked at");
    assert!(catalogs.of("harbour").unwrap().said);
    doubt(&[event("")]);
    doubt(&[event("a")]);
    assert_eq!(doubted(&catalogs), None);
    assert!(!catalogs.of("harbour").unwrap().said, "nor is it known what the runtime's Kyma says");
    catalogs.put("harbour", 1, &View::default(), (&[], catalogs.times("harbour")), at(7));
    assert_eq!(doubted(&catalogs), Some(vec![]));
    catalogs.doubt("lagoon", None);
    assert!(catalogs.of("lagoon").is_none(), "of which nothing is known, all is looked at");
}

#[test]
fn what_is_doubted_while_it_is_looked_at_stays_so() {
    let catalogs = catalogs();
    let times = catalogs.times("harbour");
    catalogs.doubt("harbour", None);
    catalogs.put("harbour", 1, &View::default(), (&[], times), at(7));
    assert_eq!(doubted(&catalogs), None, "who has doubted it may know of what came after");
}

#[test]
fn polls_look_at_the_whole_once_an_hour() {
    let catalogs = catalogs();
    let old = |minutes: i64| catalogs.is_old("harbour", at(minutes * 60));
    assert_eq!((old(59), old(60)), (false, true));
    let put = |minutes: i64| {
        catalogs.put("harbour", 1, &View::default(), (&[], catalogs.times("harbour")), at(minutes * 60));
    };
    put(50);
    assert!(old(60), "that was about single objects");
    catalogs.doubt("harbour", None);
    put(60);
    assert_eq!((old(119), old(120)), (false, true));
    assert!(!catalogs.is_old("lagoon", at(0)), "nothing is known: all is looked at anyway");
}

#[test]
fn too_many_doubts_are_a_look_at_the_whole() {
    let catalogs = catalogs();
    for n in 0..DOUBTS {
        catalogs.doubt("harbour", named(Why { causes: &[event(&n.to_string())], count: 1 }));
    }
    assert_eq!(doubted(&catalogs), Some(vec![]), "none of them is of the catalog");
    catalogs.doubt("harbour", named(Why { causes: &[event("a")], count: 1 }));
    assert_eq!(doubted(&catalogs), None);
}
