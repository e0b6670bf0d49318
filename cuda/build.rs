//! Gives the package the lists of the headers that it embeds, and a number of the headers, kernels and PTX:
//! `mscclpp_kernels::FINGERPRINT`.

use std::{
    env,
    fmt::Write,
    fs,
    io::{Error, Result},
    path::{Path, PathBuf},
};

fn main() -> Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    let mut hash = FNV_BASIS;
    for folder in ["include", "kernels", "ptx"] {
        println!("cargo:rerun-if-changed={folder}");
        for path in files(Path::new(folder))? {
            let bytes = fs::read(&path)?;
            hash = fnv(hash, path.to_string_lossy().as_bytes());
            hash = fnv(hash, &(bytes.len() as u64).to_le_bytes());
            hash = fnv(hash, &bytes);
        }
    }
    println!("cargo:rustc-env=MSCCLPP_KERNELS_FINGERPRINT={hash}");
    ["include", "c_headers", "sim"].into_iter().try_for_each(list)
}

/// Writes an array with the files in a folder to `OUT_DIR/FOLDER.rs`: the name of each in the folder, and its text.
fn list(folder: &str) -> Result<()> {
    println!("cargo:rerun-if-changed={folder}");
    let mut array = String::from("&[\n");
    for path in files(Path::new(folder))? {
        let path = path.to_str().ok_or_else(|| Error::other("the names of headers are UTF-8"))?;
        let name = &path[folder.len() + 1..];
        let text = format!("include_str!(concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/{path}\"))");
        writeln!(array, "(\"{name}\", {text}),").map_err(Error::other)?;
    }
    let out = env::var_os("OUT_DIR").ok_or_else(|| Error::other("cargo sets OUT_DIR"))?;
    fs::write(Path::new(&out).join(folder).with_extension("rs"), array + "]")
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
