use std::sync::Arc;

use jiff::Timestamp;

use super::*;

fn object(name: &str) -> ObjectRef {
    reference(&("ModuleTemplate", name.to_owned()))
}

fn event(name: &str) -> Trigger {
    Trigger::Event {
        epoch: "e".into(),
        seq: 1,
        watch: "w".into(),
        object: object(name),
        span: crate::spans::EventSpan::default(),
    }
}

#[test]
fn causes_select_objects_or_a_full_look() {
    let of = |causes: &[Trigger], count| named(Triggers { listed: causes, count }).map(|named| named.len());
    assert_eq!(of(&[Trigger::Start], 1), Some(0), "the index has what changed in KCP");
    assert_eq!(of(&[event("a"), event("b"), event("a")], 3), Some(2));
    assert_eq!(of(&[event("a"), Trigger::SecondLook { object: object("b") }], 2), Some(2));
    assert_eq!(of(&[event("a")], 2), None, "one cause is unknown");
    assert_eq!(of(&[event("")], 1), None, "an event without a name is about all objects of the kind");
}

#[test]
fn only_catalog_objects_are_doubted() {
    let hashes = [(("ModuleTemplate", "a".to_owned()), 1), (("ModuleTemplate", "b".to_owned()), 2)];
    let mut record =
        CatalogRecord::synced(None, 1, &Arc::new(hashes.into()), BTreeSet::new(), 0, Timestamp::UNIX_EPOCH);
    let doubt = |causes: &[Trigger]| named(Triggers { listed: causes, count: causes.len() });
    record.doubt(doubt(&[event("b"), event("another")]));
    let names =
        |record: &_| doubted(record).map(|ids| ids.into_iter().map(|(_, name)| name).collect::<Vec<_>>());
    assert_eq!(names(&record), Some(vec!["b".to_owned()]));
    record.doubt(doubt(&[event("")]));
    assert_eq!(names(&record), None);
}
