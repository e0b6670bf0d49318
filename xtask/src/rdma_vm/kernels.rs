//! The kernels that tests and programs launch, compiled here for the simulated devices in the machine, which has no C++
//! compiler.
//!
//! The cache of compiled kernels finds a source by its name and text, and crates name a source after its file. A kernel
//! whose text is in Rust code is not compiled here: in the machine, it fails with an error that says so.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use mscclpp_gpu::{KernelSource, store_for_sim};

use crate::error::Error;
use crate::{sources, workspace};

/// Compiles all kernels into the cache in `folder`, unless the cache of this machine has them. Returns the files.
pub(super) fn compile(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let sources = sources::all()?;
    let remaining = Mutex::new(sources.iter());
    let next = || remaining.lock().expect("no thread fails with it").next();
    let results = Mutex::new(Vec::new());
    let compilers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..compilers {
            scope.spawn(|| {
                while let Some(source) = next() {
                    let result = compile_one(folder, source);
                    results.lock().expect("no thread fails with it").push(result);
                }
            });
        }
    });
    results.into_inner().expect("no thread failed with it").into_iter().collect()
}

fn compile_one(folder: &Path, source: &Path) -> Result<PathBuf, Error> {
    let text = workspace::read(source)?;
    Ok(store_for_sim(folder, &KernelSource::new(&workspace::name(source), &text))?)
}
