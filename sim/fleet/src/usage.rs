//! Usage of a process, and the limit of open files.

use std::{fs, path::Path};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// `USER_HZ`, a constant of Linux' interface.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU time and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// User and system time, in seconds.
    pub cpu: f64,
    /// Resident memory, in MiB.
    pub rss: f64,
    /// Peak memory, in MiB.
    pub peak: f64,
}

impl Usage {
    /// Usage of a running process.
    pub fn of(pid: u32) -> Option<Self> {
        Self::read(Path::new("/proc"), pid)
    }

    fn read(proc: &Path, pid: u32) -> Option<Self> {
        let folder = proc.join(pid.to_string());
        let stat = fs::read_to_string(folder.join("stat")).ok()?;
        let status = fs::read_to_string(folder.join("status")).ok()?;
        Self::parse(&stat, &status)
    }

    fn parse(stat: &str, status: &str) -> Option<Self> {
        // The name may hold anything; fields 14 and 15 follow it.
        let (_, fields) = stat.rsplit_once(')')?;
        let mut ticks = fields.split_whitespace().skip(11).map_while(|field| field.parse::<f64>().ok());
        let cpu = (ticks.next()? + ticks.next()?) / TICKS_PER_SECOND;
        let mib = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: f64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
            Some(kib / 1024.0)
        };
        Some(Self { cpu, rss: mib("VmRSS:")?, peak: mib("VmHWM:")? })
    }
}

/// The load average over 15 minutes.
pub fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().nth(2)?.parse().ok()
}

/// Too few open files.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{runtimes} runtimes need {need} open files in one process, and this one may open {have}; raise the hard limit \
     (ulimit -Hn, LimitNOFILE=) or simulate at most {max} runtimes"
)]
pub struct TooFewFiles {
    runtimes: usize,
    need: u64,
    have: u64,
    max: u64,
}

const SPARE: u64 = 500;
/// Connections per runtime, in each process.
const EACH: u64 = 2;

/// Raises the soft limit and checks it.
pub fn allow_files(runtimes: usize) -> Result<(), TooFewFiles> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let _refused = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
    check(runtimes, getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
}

fn check(runtimes: usize, have: u64) -> Result<(), TooFewFiles> {
    let need = (runtimes as u64).saturating_mul(EACH).saturating_add(SPARE);
    if need <= have {
        return Ok(());
    }
    Err(TooFewFiles { runtimes, need, have, max: have.saturating_sub(SPARE) / EACH })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_usage_is_read_despite_any_process_name() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 100 0 0 0 20 5 0 0 20 0 9 0";
        let status = "Name:\ta\nVmHWM:\t    4096 kB\nVmRSS:\t    2048 kB\n";
        assert_eq!(Usage::parse(stat, status), Some(Usage { cpu: 0.25, rss: 2.0, peak: 4.0 }));
        assert_eq!(Usage::parse("nonsense", status), None);
        assert!(load().unwrap() >= 0.0);
        assert!(Usage::of(std::process::id()).unwrap().rss > 0.1);
    }

    #[test]
    fn a_low_file_limit_names_the_needed_one() {
        assert_eq!(check(100, 1024), Ok(()));
        let message = check(5000, 4096).unwrap_err().to_string();
        assert!(
            message.contains("5000 runtimes need 10500") && message.contains("at most 1798"),
            "{message}"
        );
    }
}
