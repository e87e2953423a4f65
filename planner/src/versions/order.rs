//! Versions in their order.

use std::cmp::Ordering;

use semver::Version;

use super::Fault;

/// The way from one version to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// To a lower one.
    Down,
    /// To the same one, or one that differs in its pre-release or build part only.
    Level,
    /// To a higher one.
    Up,
}

/// Compares major, minor and patch (contract, section 5.7): a pre-release counts as what it comes before, so that one
/// can be installed over another in any order. None if one of the two is not a version.
#[must_use]
pub fn step(installed: &str, wanted: &str) -> Option<Step> {
    Some(match core(wanted)?.cmp(&core(installed)?) {
        Ordering::Less => Step::Down,
        Ordering::Equal => Step::Level,
        Ordering::Greater => Step::Up,
    })
}

/// Whether `wanted` may take the place of what is installed; an empty installed version is not known, and any may.
/// `allow_downgrade` is what the release meta says.
pub fn may_replace(installed: Option<&str>, wanted: &str, allow_downgrade: bool) -> Result<(), Fault> {
    let Some(installed) = installed.filter(|old| !old.is_empty() && *old != wanted) else { return Ok(()) };
    let names = || (installed.to_owned(), wanted.to_owned());
    match step(installed, wanted) {
        _ if allow_downgrade => Ok(()),
        Some(Step::Level | Step::Up) => Ok(()),
        Some(Step::Down) => {
            let (installed, wanted) = names();
            Err(Fault::Downgrade { installed, wanted })
        }
        None => {
            let (installed, wanted) = names();
            Err(Fault::NotComparable { installed, wanted })
        }
    }
}

/// A leading `v` is taken off, as older templates may have one.
fn core(version: &str) -> Option<(u64, u64, u64)> {
    let version = Version::parse(version.strip_prefix('v').unwrap_or(version)).ok()?;
    Some((version.major, version.minor, version.patch))
}
