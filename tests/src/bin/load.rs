//! The processes that `make bench` starts besides the product's: a great number of agents, and servers to compare.

use clap::Parser;
use tidewatch_tests::bench::load::{self, Args};

fn main() -> anyhow::Result<()> {
    load::main(Args::parse())
}
