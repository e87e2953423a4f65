//! Each row in `docs/develop/fake-apiserver.md` names its test.

use super::{lasting, moments};

const DOCS: &str = include_str!("../../../../docs/develop/fake-apiserver.md");
const TABLES: [&str; 2] = ["## What is refused\n", "## Known differences\n"];
/// Other tests of rows.
const FILES: [(&str, &str); 5] = [
    ("cases/known.txt", include_str!("../cases/known.txt")),
    ("cases/versions.txt", include_str!("../cases/versions.txt")),
    ("forms.rs", include_str!("../forms.rs")),
    ("aggregation.rs", include_str!("../aggregation.rs")),
    (
        "sim/apiserver/tests/api_server/limits.rs",
        include_str!("../../../../sim/apiserver/tests/api_server/limits.rs"),
    ),
];

fn shown_by() -> Vec<(&'static str, &'static str)> {
    let sections = TABLES.iter().filter_map(|title| DOCS.split_once(title));
    let sections = sections.map(|(_, rest)| rest.split("\n## ").next().unwrap_or_default());
    let rows = sections.flat_map(|text| text.lines().filter(|line| line.starts_with("| ")).skip(1));
    rows.filter_map(|row| Some((row, row.trim_end_matches(" |").rsplit_once(" | ")?.1))).collect()
}

#[test]
fn every_row_and_every_known_difference_is_shown() {
    let rows = shown_by();
    let mut abouts: Vec<&str> = lasting().iter().chain(&moments::all(0)).map(|known| known.about).collect();
    abouts.push(moments::RBAC);
    let quoted = |cell: &'static str| cell.split('`').skip(1).step_by(2);
    for (row, cell) in &rows {
        let by_nature = cell.split_once("by nature: ").is_some_and(|(_, why)| !why.is_empty());
        assert!(by_nature || quoted(cell).next().is_some(), "nothing shows {row}");
        for name in quoted(cell) {
            let is_there =
                abouts.contains(&name) || FILES.iter().any(|(file, text)| *file == name && !text.is_empty());
            assert!(is_there, "{name} is no known difference: {row}");
        }
    }
    for about in abouts {
        assert!(rows.iter().any(|(_, cell)| quoted(cell).any(|name| name == about)), "no row names {about}");
    }
}
