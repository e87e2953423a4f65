//! Attempts per verb, feature and kind.

use std::{collections::BTreeMap, fmt};

use super::content::Kind;

/// A verb and a feature.
pub(crate) type Cell = (&'static str, &'static str);

/// Attempts and differences per cell and kind.
#[derive(Debug, Default)]
pub(crate) struct Table(BTreeMap<Cell, Counts>);

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    tried: [u64; Kind::ALL.len()],
    differed: u64,
}

impl Counts {
    fn all(&self) -> u64 {
        self.tried.iter().sum()
    }
}

impl Table {
    pub(crate) fn note(&mut self, cell: Cell, kind: Kind, differed: bool) {
        let counts = self.0.entry(cell).or_default();
        counts.tried[kind as usize] += 1;
        counts.differed += u64::from(differed);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (cell, more) in &other.0 {
            let counts = self.0.entry(*cell).or_default();
            counts.tried.iter_mut().zip(more.tried).for_each(|(sum, tried)| *sum += tried);
            counts.differed += more.differed;
        }
    }

    /// Returns the cells with too few attempts.
    pub(crate) fn below(&self, least: u64, cells: impl Iterator<Item = Cell>) -> Vec<String> {
        let tried = |cell: &Cell| self.0.get(cell).map_or(0, Counts::all);
        let few = cells.map(|cell| (cell, tried(&cell))).filter(|(_, tried)| *tried < least);
        few.map(|((verb, feature), tried)| format!("{verb}, {feature}: tried {tried} times only")).collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<16} {:<28} {:>7} {:>7}", "verb", "feature", "tried", "differ")?;
        Kind::ALL.iter().try_for_each(|kind| write!(f, " {:>11}", kind.plural()))?;
        writeln!(f)?;
        for ((verb, feature), counts) in &self.0 {
            write!(f, "{verb:<16} {feature:<28} {:>7} {:>7}", counts.all(), counts.differed)?;
            counts.tried.iter().try_for_each(|tried| write!(f, " {tried:>11}"))?;
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rarely_tried_cell_is_named() {
        let (get, list) = (("get", "plain"), ("list", "limit"));
        let (mut table, mut more) = (Table::default(), Table::default());
        table.note(get, Kind::Map, false);
        more.note(get, Kind::Foo, true);
        table.add(&more);
        assert!(table.below(2, [get].into_iter()).is_empty());
        let few = table.below(3, [get, list].into_iter());
        assert_eq!(few, ["get, plain: tried 2 times only", "list, limit: tried 0 times only"]);
    }
}
