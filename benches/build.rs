//! Records which compiler built the benchmarks, so that a report can name it.

use std::process::Command;

fn main() {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = Command::new(rustc)
        .arg("--version")
        .output()
        .ok()
        .and_then(|out| String::from_utf8(out.stdout).ok())
        .unwrap_or_default();
    println!("cargo::rustc-env=TOLLGATE_RUSTC={}", version.trim());
    println!("cargo::rerun-if-changed=build.rs");
}
