//! The CUDA sources of this repository.

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::workspace;

/// The folders in which sources are searched for, including folders below.
const FOLDERS: [&str; 2] = ["cuda/kernels", "crates"];

/// A folder that is left out: no machine gets sources of the Python package compiled.
const LEFT_OUT: &str = "mscclpp-python";

/// All sources, those of the library first. Links are left out, as the folder of what they lead to is searched, too.
pub(crate) fn all() -> Result<Vec<PathBuf>, Error> {
    let mut sources = Vec::new();
    for name in FOLDERS {
        find(&workspace::root().join(name), &mut sources)?;
    }
    Ok(sources)
}

fn find(folder: &Path, sources: &mut Vec<PathBuf>) -> Result<(), Error> {
    for path in workspace::entries(folder)? {
        if path.is_dir() {
            if workspace::name(&path) != LEFT_OUT {
                find(&path, sources)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "cu") && !path.is_symlink() {
            sources.push(path);
        }
    }
    Ok(())
}
