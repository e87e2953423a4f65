//! Child processes of `make bench`: agents and servers.

use clap::Parser;
use tidewatch_tests::bench::load::{self, Args};

fn main() -> anyhow::Result<()> {
    load::main(Args::parse())
}
