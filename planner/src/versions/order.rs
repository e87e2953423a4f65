//! Version order.

use std::cmp::Ordering;

use semver::Version;

use super::Fault;

/// Direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Lower.
    Down,
    /// Equal except pre-release or build.
    Level,
    /// Higher.
    Up,
}

/// Compares major, minor and patch; pre-releases replace each other. `None` for invalid versions.
#[must_use]
pub fn direction(installed: &str, wanted: &str) -> Option<Direction> {
    Some(match core(wanted)?.cmp(&core(installed)?) {
        Ordering::Less => Direction::Down,
        Ordering::Equal => Direction::Level,
        Ordering::Greater => Direction::Up,
    })
}

/// Checks a replacement. An empty `installed` always passes, as does `allow_downgrade`.
pub fn may_replace(installed: Option<&str>, wanted: &str, allow_downgrade: bool) -> Result<(), Fault> {
    let Some(installed) = installed.filter(|old| !old.is_empty() && *old != wanted) else { return Ok(()) };
    let names = || (installed.to_owned(), wanted.to_owned());
    match direction(installed, wanted) {
        _ if allow_downgrade => Ok(()),
        Some(Direction::Level | Direction::Up) => Ok(()),
        Some(Direction::Down) => {
            let (installed, wanted) = names();
            Err(Fault::Downgrade { installed, wanted })
        }
        None => {
            let (installed, wanted) = names();
            Err(Fault::NotComparable { installed, wanted })
        }
    }
}

/// Old templates may have a leading `v`.
fn core(version: &str) -> Option<(u64, u64, u64)> {
    let version = Version::parse(version.strip_prefix('v').unwrap_or(version)).ok()?;
    Some((version.major, version.minor, version.patch))
}
