//! Random sequences over few names, to provoke conflicts.

mod cells;
mod content;
mod dice;
mod endings;
mod table;

use anyhow::Result;

use self::{
    cells::CELLS,
    content::{GROUP, Kind},
    endings::Ending,
    table::Cell,
};
pub(crate) use self::{dice::Dice, table::Table};
use crate::{
    pair::{Call, Memory, Pair},
    prepare::prepare,
};

const CALLS: u64 = 20;
/// Kinds with more cells appear more often.
const KINDS: [Kind; 7] = [Kind::Map, Kind::Secret, Kind::Job, Kind::Job, Kind::Foo, Kind::Foo, Kind::Foo];
/// One call in this many creates or applies.
const SOWING: u64 = 4;

/// A running sequence.
pub(crate) struct Play<'a> {
    pair: &'a Pair,
    seed: u64,
    dice: Dice,
    kind: Kind,
    namespace: String,
    base: String,
    memories: (Memory, Memory),
    found: Vec<String>,
    table: Table,
}

/// All cells of random sequences.
pub(crate) fn all_cells() -> impl Iterator<Item = Cell> {
    CELLS.iter().map(|step| step.cell).chain(endings::CELLS)
}

/// Runs a seed's sequence and returns differences.
pub(crate) async fn run(pair: &Pair, seed: u64) -> Result<(Vec<String>, Table)> {
    let namespace = format!("random-{seed}");
    prepare(pair, &namespace, GROUP).await?;
    let mut dice = Dice::new(seed);
    let kind = *dice.pick(&KINDS);
    let mut play = Play {
        pair,
        seed,
        dice,
        kind,
        base: kind.base(&namespace),
        namespace,
        memories: Default::default(),
        found: Vec::new(),
        table: Table::default(),
    };
    play.call(&Call::get(play.base.clone()).saved("begin")).await?;
    let fitting = CELLS.iter().filter(|step| (step.on)(kind));
    let sowing: Vec<_> = fitting.clone().filter(|step| step.sows).collect();
    // Compensates for features of few kinds.
    let fitting: Vec<_> =
        fitting.flat_map(|step| std::iter::repeat_n(step, if step.is_general { 1 } else { 2 })).collect();
    for _ in 0..CALLS {
        let among = if play.dice.one_of(SOWING) { &sowing } else { &fitting };
        let step = *play.dice.pick(among);
        let calls = (step.calls)(&mut play.dice, kind, &play.base);
        play.calls(step.cell, &calls).await?;
    }
    let whole = format!("{}?watch=1&timeoutSeconds=1&resourceVersion={{begin.rv}}", play.base);
    play.calls(endings::WHOLE, &[Call::get(whole)]).await?;
    let e = Ending::of(&mut play.dice);
    e.play(&mut play).await?;
    Ok((play.found, play.table))
}

impl Play<'_> {
    /// Makes calls as one attempt of the cell.
    async fn calls(&mut self, cell: Cell, calls: &[Call]) -> Result<()> {
        let before = self.found.len();
        for call in calls {
            self.call(call).await?;
        }
        self.table.note(cell, self.kind, self.found.len() > before);
        Ok(())
    }

    async fn call(&mut self, call: &Call) -> Result<()> {
        let lines = self.pair.call(call, &mut self.memories).await?;
        let seed = self.seed;
        self.found.extend(lines.into_iter().map(|line| format!("seed {seed}: {line}")));
        Ok(())
    }
}
