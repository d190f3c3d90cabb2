//! What `-lcuda` finds where there is no driver, and a stub for each symbol that is not written in `src/ffi`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=symbols.txt");
    println!("cargo::rerun-if-changed=src/ffi");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));

    // An archive with nothing in it: whoever links `-lcuda` finds it, and the symbols come from this crate.
    fs::write(out.join("libcuda.a"), "!<arch>\n").expect("OUT_DIR can be written");
    println!("cargo::rustc-link-search=native={}", out.display());
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");

    let written = written();
    let symbols = fs::read_to_string("symbols.txt").expect("symbols.txt is beside build.rs");
    let mut stubs = String::from("stubs! {\n");
    let mut declared = String::from("unsafe extern \"C\" {\n");
    let mut table = String::new();
    for symbol in symbols.lines().map(str::trim).filter(|it| !it.is_empty()) {
        if !written.contains(symbol) {
            writeln!(stubs, "    {symbol}").expect("a string can be written");
        }
        writeln!(declared, "    fn {symbol}();").expect("a string can be written");
        writeln!(table, "    (\"{symbol}\", {symbol}),").expect("a string can be written");
    }
    stubs.push_str("}\n");
    fs::write(out.join("stubs.rs"), stubs).expect("OUT_DIR can be written");
    write!(declared, "}}\nstatic DECLARED: &[(&str, unsafe extern \"C\" fn())] = &[\n{table}];\n")
        .expect("a string can be written");
    fs::write(out.join("declared.rs"), declared).expect("OUT_DIR can be written");
}

/// The functions of the driver that are in `src/ffi`.
fn written() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir("src/ffi").expect("src/ffi is beside build.rs") {
        let path = entry.expect("src/ffi can be listed").path();
        let source = fs::read_to_string(path).expect("src/ffi can be read");
        for rest in source.split("fn cu").skip(1) {
            let end = rest.find(|it: char| !it.is_ascii_alphanumeric() && it != '_');
            names.insert(format!("cu{}", &rest[..end.unwrap_or(rest.len())]));
        }
    }
    names
}
