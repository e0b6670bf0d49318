//! Makes a number of the package's own sources, `MSCCLPP_COLLECTIVES_SOURCES`: they lay out the scratch and choose how a call is
//! done. `cuda/build.rs` does the same for kernels. Each script is packaged with its crate, so they share no code.

use std::{
    fs,
    io::Result,
    path::{Path, PathBuf},
};

fn main() -> Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    let mut hash = FNV_BASIS;
    println!("cargo:rerun-if-changed=src");
    for path in files(Path::new("src"))? {
        let bytes = fs::read(&path)?;
        hash = fnv(hash, path.to_string_lossy().as_bytes());
        hash = fnv(hash, &(bytes.len() as u64).to_le_bytes());
        hash = fnv(hash, &bytes);
    }
    println!("cargo:rustc-env=MSCCLPP_COLLECTIVES_SOURCES={hash}");
    Ok(())
}

/// The files in a folder and below, in one order on every machine.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// FNV-1a of 64 bits, which is the same in every version of Rust.
fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
