//! `dist --pack`: one file with everything that `ci/gpu.sh --packed` runs.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, FileContext};
use crate::run::run;
use crate::workspace;

/// The most bytes that may be sent to a GPU machine with a checkout.
const MOST_BYTES: u64 = 40 << 20;

/// Files and folders of the repository that are packed, and their places: scripts that tests and `gpu.sh` start, and
/// files that these need.
const SCRIPTS: [(&str, &str); 5] = [
    ("ci/suites", "suites"),
    ("crates/mscclpp-nccl/tests/clients", "tests/clients"),
    ("crates/mscclpp-python/tests", "python/tests"),
    ("crates/mscclpp-python/examples", "python/examples"),
    ("crates/mscclpp-python/pyproject.toml", "python/pyproject.toml"),
];

/// The compression. All tests contain the same libraries: a dictionary that spans many tests finds these repetitions. A
/// higher preset takes much longer and gains little.
const COMPRESSION: &str = "xz --threads=1 --lzma2=preset=3,dict=256MiB";

/// Adds scripts and `wheels` to `folder`, packs the folder into a file beside it, and returns that file's path.
pub(super) fn pack(folder: &Path, wheels: &[PathBuf]) -> Result<PathBuf, Error> {
    for (from, to) in SCRIPTS {
        copy(&workspace::root().join(from), &folder.join(to))?;
    }
    copy(&workspace::root().join("ci/gpu.sh"), &folder.join("gpu.sh"))?;
    for wheel in wheels {
        copy(wheel, &folder.join("python/wheels").join(wheel.file_name().unwrap_or_default()))?;
    }
    let file = folder.with_file_name("mscclpp.tar.xz");
    let name = folder.file_name().unwrap_or_default();
    let renamed = format!("--transform=s,^{},mscclpp,", name.to_string_lossy());
    run(Command::new("tar")
        .args(["--create", "--sort=name", "--owner=0", "--group=0", "--mode=go-w", &renamed])
        .args(["--use-compress-program", COMPRESSION, "--file"])
        .arg(&file)
        .arg("--directory")
        .args([folder.parent().map_or(OsStr::new("."), Path::as_os_str), name]))?;
    let bytes = std::fs::metadata(&file).context("read", &file)?.len();
    println!("packed     {} ({:.1} MiB)", file.display(), bytes as f64 / f64::from(1 << 20));
    if bytes > MOST_BYTES {
        return Err(Error::TooLarge { path: file, bytes, most: MOST_BYTES });
    }
    Ok(file)
}

/// Copies a file, or a folder with everything in it except files that Python has compiled.
fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    if from.is_dir() {
        for entry in workspace::entries(from)? {
            let name = workspace::name(&entry);
            if name != "__pycache__" {
                copy(&entry, &to.join(name))?;
            }
        }
        return Ok(());
    }
    workspace::create_folder(to.parent().unwrap_or(Path::new(".")))?;
    std::fs::copy(from, to).context("copy", from)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_of_the_repository_is_there() {
        for (from, _) in SCRIPTS {
            assert!(workspace::root().join(from).exists(), "{from}");
        }
    }
}
