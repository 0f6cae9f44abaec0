//! Compiles the shim over Tcl's C API against the headers of one Tcl version, and links that version's stub library.
//!
//! `STILLING_TCL_INCLUDE`: the folder with `tcl.h`. `STILLING_TCL_STUB`: the path of the stub library. Without them the
//! development files of Debian's package `tcl8.6-dev` are used.
#![allow(clippy::print_stdout, reason = "a build script answers cargo on its standard output")]

use std::path::{Path, PathBuf};

const DEFAULT_INCLUDE: &str = "/usr/include/tcl8.6";

fn main() {
    for name in ["STILLING_TCL_INCLUDE", "STILLING_TCL_STUB"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    println!("cargo::rerun-if-changed=shim");
    let include = variable("STILLING_TCL_INCLUDE").unwrap_or_else(|| PathBuf::from(DEFAULT_INCLUDE));
    let header = include.join("tcl.h");
    println!("cargo::rerun-if-changed={}", header.display());
    if !header.exists() {
        println!(
            "cargo::error={} is missing: install the package tcl8.6-dev, or set STILLING_TCL_INCLUDE",
            header.display()
        );
        return;
    }
    let Some(stub) = variable("STILLING_TCL_STUB").or_else(default_stub) else {
        println!(
            "cargo::error=libtclstub8.6.a is missing: install the package tcl8.6-dev, or set STILLING_TCL_STUB"
        );
        return;
    };
    cc::Build::new()
        .file("shim/tcl_api.c")
        .include(&include)
        .define("USE_TCL_STUBS", None)
        .warnings(true)
        .extra_warnings(true)
        .flag_if_supported("-Wno-unused-parameter")
        .compile("stilling_tcl_shim");
    let name = stub.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.strip_prefix("lib"));
    let (Some(folder), Some(name)) = (stub.parent(), name) else {
        println!("cargo::error={} is no static library", stub.display());
        return;
    };
    println!("cargo::rustc-link-search=native={}", folder.display());
    println!("cargo::rustc-link-lib=static={name}");
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The stub library of `tcl8.6-dev`, in the folder of this machine's architecture.
fn default_stub() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.flatten().map(|entry| entry.path());
    std::iter::once(Path::new("/usr/lib").to_path_buf())
        .chain(folders)
        .map(|folder| folder.join("libtclstub8.6.a"))
        .find(|stub| stub.exists())
}
