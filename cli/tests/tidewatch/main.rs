//! Tests of the commands: output and exit codes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may; these are its helpers")]

mod certs;
mod demo;
mod lint;
mod module;
mod output;
mod simulate;

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

/// Runs `tidewatch` without the environment's registry credentials.
fn tidewatch(folder: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_tidewatch"))
        .args(args)
        .current_dir(folder)
        .env_remove("TIDEWATCH_REGISTRY_CREDENTIALS")
        .env("DOCKER_CONFIG", folder)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}
