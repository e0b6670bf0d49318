//! Finds the program that these tests run.

use std::path::{Path, PathBuf};

/// The path that cargo gave it, or the name beside this test that `cargo xtask dist` gives it. Either may be missing.
pub(crate) fn program() -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_mscclpp-bench"));
    let beside = std::env::current_exe().map(|test| test.with_file_name("bin-mscclpp-bench-mscclpp-bench"));
    if built.exists() { built.to_owned() } else { beside.unwrap_or_default() }
}
