//! Process figures from the kernel.

use std::fs;

use anyhow::{Context, Result};

/// `USER_HZ`, a constant of the Linux interface.
const TICKS_PER_SECOND: f64 = 100.0;

pub(super) fn rss_mib(pid: u32) -> Result<f64> {
    status_mib(pid, "VmRSS:")
}

pub(super) fn peak_mib(pid: u32) -> Result<f64> {
    status_mib(pid, "VmHWM:")
}

fn status_mib(pid: u32, field: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib: f64 = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.trim().strip_suffix("kB")?.trim().parse().ok())
        .with_context(|| format!("there is no {field}"))?;
    Ok(kib / 1024.0)
}

/// User and system time in hundredths of a second.
pub(super) fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    cpu_of(&stat).context("/proc/<pid>/stat is not what is known of it")
}

/// CPU time of live threads in nanoseconds, for nearly idle processes.
pub(super) fn fine_cpu_seconds(pid: u32) -> Result<f64> {
    let mut nanoseconds = 0.0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // The thread ended after the listing.
        let Ok(text) = fs::read_to_string(thread?.path().join("schedstat")) else { continue };
        let first = text.split_whitespace().next().and_then(|n| n.parse::<f64>().ok());
        nanoseconds += first.context("schedstat is not what is known of it")?;
    }
    Ok(nanoseconds / 1e9)
}

/// Hard limit of open files for child processes.
pub(super) fn most_files() -> Option<usize> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find(|line| line.starts_with("Max open files"))?;
    line.split_whitespace().nth(4)?.parse().ok()
}

fn cpu_of(stat: &str) -> Option<f64> {
    // The name in the second field can contain anything. Fields 14 and 15 come after it.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut ticks = fields.split_whitespace().skip(11).map_while(|f| f.parse::<f64>().ok());
    Some((ticks.next()? + ticks.next()?) / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::float_cmp, reason = "a quarter is exact")]
    fn cpu_time_is_read_despite_any_process_name() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 100 0 0 0 20 5 0 0 20 0 9 0";
        assert_eq!(cpu_of(stat), Some(0.25));
        assert_eq!(cpu_of("nonsense"), None);
    }

    #[test]
    fn usage_of_this_process_is_read() {
        let pid = std::process::id();
        // Other tests allocate between the two readings, so they are not compared.
        assert!(rss_mib(pid).unwrap() > 0.1 && peak_mib(pid).unwrap() > 0.1);
        assert!(cpu_seconds(pid).unwrap() >= 0.0 && fine_cpu_seconds(pid).unwrap() > 0.0);
        assert!(most_files().unwrap() > 10);
    }

    #[test]
    fn a_thread_ending_during_the_read_is_ignored() {
        std::thread::scope(|scope| {
            let ending = scope.spawn(|| (0..2_000).for_each(|_| drop(std::thread::spawn(|| ()).join())));
            while !ending.is_finished() {
                fine_cpu_seconds(std::process::id()).unwrap();
            }
        });
    }
}
