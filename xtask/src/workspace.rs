//! The places of files in the repository.

use std::path::{Path, PathBuf};

use crate::error::{Error, FileContext};

/// The folder of the repository in which `cargo xtask` was called. This program may have been compiled in another checkout
/// that shares its target folder.
pub(crate) fn root() -> PathBuf {
    let package =
        std::env::var_os("CARGO_MANIFEST_DIR").map_or(env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    package.parent().expect("xtask is a folder of the repository").to_owned()
}

/// The folder into which cargo builds.
pub(crate) fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root().join(folder),
        None => root().join("target"),
    }
}

/// The files of a folder whose names end in `.extension`, sorted by name.
pub(crate) fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, Error> {
    let mut found = entries(folder)?;
    found.retain(|path| path.extension().is_some_and(|e| e == extension));
    Ok(found)
}

/// The files and folders in a folder, sorted by name.
pub(crate) fn entries(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = std::fs::read_dir(folder).context("list", folder)?;
    let paths = entries.map(|entry| Ok(entry.context("list", folder)?.path()));
    let mut paths = paths.collect::<Result<Vec<_>, Error>>()?;
    paths.sort();
    Ok(paths)
}

/// A path's last component, as text.
pub(crate) fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Reads a text file.
pub(crate) fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).context("read", path)
}

/// Creates a folder and those above it.
pub(crate) fn create_folder(path: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(path).context("create", path)
}
