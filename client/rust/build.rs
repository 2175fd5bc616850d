//! Finds libsortition_c: in the folder SORTITION_LIB_DIR, otherwise where pkg-config says.
use std::env;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=SORTITION_LIB_DIR");
    let folder = env::var("SORTITION_LIB_DIR").ok().or_else(folder_of_pkg_config);
    if let Some(folder) = folder {
        println!("cargo:rustc-link-search=native={}", folder);
    }
    println!("cargo:rustc-link-lib=dylib=sortition_c");
}

/// Returns nothing if the linker finds the library by itself, or if there is no pkg-config.
fn folder_of_pkg_config() -> Option<String> {
    let output = Command::new("pkg-config").args(["--variable=libdir", "sortition_c"]).output().ok()?;
    let folder = String::from_utf8(output.stdout).ok()?.trim().to_string();
    if output.status.success() && !folder.is_empty() {
        Some(folder)
    } else {
        None
    }
}
