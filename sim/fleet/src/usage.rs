//! What the kernel says of a process: CPU time and memory; and how many files this one may open.

use std::{fs, path::Path};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// `USER_HZ`: a constant of Linux' interface, whatever the kernel ticks with.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU time and memory of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// User and system time so far, in seconds.
    pub cpu: f64,
    /// Resident memory now, in MiB.
    pub rss: f64,
    /// The most that it has been, in MiB.
    pub peak: f64,
}

impl Usage {
    /// Of a process that runs; `None`: there is none.
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
        // The second field, the name, may hold anything; fields 14 and 15 are counted after it.
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

/// Too few files may be open.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{runtimes} runtimes need {need} open files in one process, and this one may open {have}; raise the hard limit \
     (ulimit -Hn, LimitNOFILE=) or simulate at most {most} runtimes"
)]
pub struct TooFewFiles {
    runtimes: usize,
    need: u64,
    have: u64,
    most: u64,
}

/// Open files besides those of runtimes.
const SPARE: u64 = 500;
/// For each runtime: of the agents' process the ways to API server and receiver; of the API servers' the ends of the
/// agents' and of the receiver's; of the receiver's the ends of an agent's and of its own.
const EACH: u64 = 2;

/// Raises the soft limit to the hard one, and says if it is too low for so many runtimes.
pub fn allow_files(runtimes: usize) -> Result<(), TooFewFiles> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // What cannot be raised is found too low below, if it is.
        let _refused = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
    check(runtimes, getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
}

fn check(runtimes: usize, have: u64) -> Result<(), TooFewFiles> {
    let need = (runtimes as u64).saturating_mul(EACH).saturating_add(SPARE);
    if need <= have {
        return Ok(());
    }
    Err(TooFewFiles { runtimes, need, have, most: have.saturating_sub(SPARE) / EACH })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_past_any_name() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 100 0 0 0 20 5 0 0 20 0 9 0";
        let status = "Name:\ta\nVmHWM:\t    4096 kB\nVmRSS:\t    2048 kB\n";
        assert_eq!(Usage::parse(stat, status), Some(Usage { cpu: 0.25, rss: 2.0, peak: 4.0 }));
        assert_eq!(Usage::parse("nonsense", status), None);
        assert!(load().unwrap() >= 0.0);
        assert!(Usage::of(std::process::id()).unwrap().rss > 0.1);
    }

    #[test]
    fn a_limit_that_is_too_low_says_what_to_do() {
        assert_eq!(check(100, 1024), Ok(()));
        let message = check(5000, 4096).unwrap_err().to_string();
        assert!(
            message.contains("5000 runtimes need 10500") && message.contains("at most 1798"),
            "{message}"
        );
    }
}
