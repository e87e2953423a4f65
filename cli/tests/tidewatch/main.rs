//! The commands as they are called, in one test binary: what they print, and with what they end.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may; these are its helpers")]

mod certs;
mod demo;
mod ends;
mod lint;
mod module;
mod simulate;

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

/// Runs `tidewatch` in a folder, without what the environment says of credentials.
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
