use tidewatch_wire::{limits, v2};

use crate::assert_round_trip;

/// A body of `POST /v2/<manager>/event`; the bytes also stand for a path.
///
/// # Panics
/// If a promise is broken.
pub fn v2_body(data: &[u8]) {
    if let Ok(path) = std::str::from_utf8(data)
        && let Some(manager) = v2::manager_of_path(path)
    {
        assert!(!manager.is_empty() && !manager.contains('/'));
        assert_eq!(format!("/v2/{manager}/event"), path);
    }
    if data.len() > limits::V2_BODY_BYTES {
        return;
    }
    let Ok(event) = serde_json::from_slice::<v2::WatchEvent>(data) else { return };
    let v2::WatchEvent { watched, watched_gvk: gvk } = &event;
    let kept: usize = [&watched.namespace, &watched.name, &gvk.group, &gvk.version, &gvk.kind]
        .map(String::len)
        .iter()
        .sum();
    assert!(kept <= data.len(), "{kept} bytes are kept of {}", data.len());
    let written = assert_round_trip(&event);
    // Names of fields, braces and quotes.
    assert!(written.len() <= data.len() + 128, "{} bytes are written of {}", written.len(), data.len());
}
