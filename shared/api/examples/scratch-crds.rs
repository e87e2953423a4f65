//! Scratch.
#![allow(clippy::unwrap_used)]
fn main() {
    let dir = std::env::args().nth(1).unwrap();
    for crd in tidewatch_api::crds::all() {
        std::fs::write(
            format!("{dir}/{}", tidewatch_api::crds::file_name(&crd)),
            tidewatch_api::crds::yaml(&crd),
        )
        .unwrap();
    }
}
