use std::time::Duration;

use jiff::Timestamp;
use tidewatch_engine::{
    drive::EngineConfig,
    journal::{Stamped, Start},
};

use super::*;
use crate::read::End;

#[tokio::test(start_paused = true)]
async fn a_look_that_the_record_does_not_have_takes_no_others_turn() {
    let turn = |place: &str| Line::Turn { work: 1, place: place.to_owned() };
    let lines = [turn("claim"), turn("claim"), turn("end")];
    let record = Record {
        start: Start::new("p", "1", Timestamp::UNIX_EPOCH, &EngineConfig::default()),
        lines: lines.into_iter().map(|line| Stamped { at: 1.0, line }).collect(),
        end: End::Closed,
    };
    let tape = Tape::new(&record);
    let waits =
        async |place| tokio::time::timeout(Duration::from_secs(1), tape.turn(1, place)).await.is_err();
    // What others have learned in the record is learned here.
    assert!(!waits("reach").await);
    let (first, second) = (tape.turn(1, "claim"), tape.turn(1, "claim"));
    assert!(!waits("claim").await, "the record has two");
    tape.pass(1, "end");
    tape.pass(1, "claim");
    first.await;
    assert!(tokio::time::timeout(Duration::from_secs(1), second).await.is_err());
    assert!(!waits("end").await, "its line was reached before");
}
