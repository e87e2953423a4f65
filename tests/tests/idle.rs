//! What `make idle` measures for an hour, for a minute. In a program of its own: beside other tests a world is not at rest.

use std::time::Duration;

use anyhow::{Result, ensure};
use tidewatch_tests::{idle, report::Terminal};

/// So long that each agent's canary comes once.
const MINUTE: Duration = Duration::from_mins(1);

#[test]
fn an_unchanged_fleet_causes_few_requests() -> Result<()> {
    let idle = idle::main(MINUTE, MINUTE, &Terminal::default())?;
    ensure!(idle.is_met(), "{}", idle.table());
    ensure!(idle.asked.iter().any(|asked| asked.program == "tidewatch-agent"), "nothing was counted");
    Ok(())
}
