//! How the program is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let target = |key: &str| std::env::var(format!("CARGO_CFG_TARGET_{key}")).unwrap_or_default();
    if target("OS") == "linux" && target("ENV") == "gnu" {
        // Addresses to be adjusted at the start take a bit each instead of 24 bytes, all of which are read into memory. A linker
        // that does not know it says so, and goes on.
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}
