//! The cache of compiled kernels: a folder with one file for each, named after everything that it was made from.
//!
//! The folder is `MSCCLPP_CACHE_DIR` if that is set, otherwise `mscclpp` in the user's cache folder (`XDG_CACHE_HOME`,
//! or `.cache` in the home). The files in it are loaded and run, so a folder or a file that others may write to is
//! refused.
//!
//! # Invariants
//! 1. An entry appears whole, by a rename, and is replaced so too, so a reader needs no lock.
//! 2. One process at a time makes an entry: it holds a lock on a file beside it. The others wait, and then find the
//!    entry.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use sha2::{Digest, Sha256};

use crate::{Error, KernelSource, Result, env};

/// The name of an entry.
pub(crate) struct Entry {
    file: String,
}

impl Entry {
    /// Makes the name of an entry that is made from all of `parts`. `name` is for people, and `kind` is the end of the
    /// file's name.
    pub(crate) fn new(name: &str, kind: &str, parts: &[&str]) -> Self {
        let digest = digest(parts);
        let name: String =
            name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(48).collect();
        Self { file: format!("{name}-{digest}.{kind}") }
    }
}

/// Returns a hash of all `parts`.
pub(crate) fn digest(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the entry's content. If there is none, returns the result of `make`, and stores it there. A folder that cannot
/// be used, for lack of space or rights, is logged and not used.
///
/// # Errors
/// [`Error::Cache`] if others may write to it; the errors of `make`.
pub(crate) fn get_or_make(entry: &Entry, make: impl FnOnce() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
    match folder()? {
        Some(folder) => get_or_make_at(&folder.join(&entry.file), make),
        None => make(),
    }
}

fn get_or_make_at(path: &Path, make: impl FnOnce() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
    if let Some(bytes) = read(path)? {
        return Ok(bytes);
    }
    let lock = match lock(path) {
        Ok(lock) => lock,
        Err(error) => {
            tracing::warn!(target: "mscclpp::gpu", %error, path = %path.display(), "a compiled kernel is not cached");
            return make();
        }
    };
    // The process that had the lock before may have made it.
    let bytes = match read(path)? {
        Some(bytes) => bytes,
        None => {
            let bytes = make()?;
            keep(path, &bytes);
            bytes
        }
    };
    drop(lock);
    Ok(bytes)
}

/// Replaces the entry's content by the result of `make`, and returns it.
#[cfg(feature = "cuda")]
pub(crate) fn remake(entry: &Entry, make: impl FnOnce() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
    let bytes = make()?;
    if let Some(path) = folder()?.map(|folder| folder.join(&entry.file)) {
        keep(&path, &bytes);
    }
    Ok(bytes)
}

/// The compute capabilities for which kernels may be compiled beforehand.
#[cfg(feature = "cuda")]
pub(crate) const CAPABILITIES_BEFOREHAND: [u32; 2] = [90, 80];

/// Returns the entry's content, if there is one.
pub(crate) fn find(entry: &Entry) -> Result<Option<Vec<u8>>> {
    match folder()? {
        Some(folder) => read(&folder.join(&entry.file)),
        None => Ok(None),
    }
}

/// Returns the entry for the PTX of `source` that was compiled beforehand ([`store_ptx`]) for this compute capability.
pub(crate) fn beforehand(source: &KernelSource<'_>, capability: u32) -> Entry {
    let kind = format!("ptx beforehand {capability}");
    let mut parts = vec![kind.as_str(), source.cuda()];
    parts.extend(headers(source).into_iter().flat_map(<[&str; 2]>::from));
    Entry::new(source.name(), "ptx", &parts)
}

/// Returns the headers for a compiler without files: the library's, those of the C library, and the source's own, which
/// replace others of the same name.
pub(crate) fn headers<'a>(source: &KernelSource<'a>) -> Vec<(&'a str, &'a str)> {
    let own = |name| source.headers().iter().any(|(other, _)| *other == name);
    let library = mscclpp_kernels::HEADERS.iter().chain(mscclpp_kernels::C_HEADERS);
    library.filter(|(name, _)| !own(*name)).chain(source.headers()).copied().collect()
}

/// Stores PTX of `source` that was compiled beforehand in a cache of compiled kernels. Where it is used,
/// `MSCCLPP_CACHE_DIR` names that folder; [`Module::load`](crate::Module::load) then finds it on CUDA and needs no
/// compiler. Returns the file's path. `capability` is the compute capability for which it was compiled, 80 for 8.0; it
/// must be 80 or 90, which are the ones looked for.
///
/// # Errors
/// [`Error::Cache`] if others may write to the folder; [`Error::System`].
pub fn store_ptx(folder: &Path, source: &KernelSource<'_>, capability: u32, ptx: &str) -> Result<PathBuf> {
    store(folder, &beforehand(source, capability), ptx.as_bytes())
}

pub(crate) fn store(folder: &Path, entry: &Entry, bytes: &[u8]) -> Result<PathBuf> {
    make_folder(folder).map_err(|e| Error::system(format!("making {}", folder.display()), e))?;
    check(folder)?;
    let path = folder.join(&entry.file);
    write(&path, bytes).map_err(|e| Error::system(format!("writing {}", path.display()), e))?;
    Ok(path)
}

/// Returns the folder in which [`Module::load`](crate::Module::load) keeps compiled kernels: `MSCCLPP_CACHE_DIR` if it is
/// set, otherwise `mscclpp` in the user's cache folder. `None` if the user has no home folder either.
#[must_use]
pub fn kernel_cache() -> Option<PathBuf> {
    env::cache_folder()
}

/// Returns PTX from the cache of compiled kernels. If it is not there, returns the result of `make`, and stores it there.
/// For programs that compile kernels by themselves, with nvcc for example, and load them with [`KernelSource::with_ptx`].
///
/// `name` is for people and becomes part of the file's name. `made_from` is all that the PTX depends on: the compiler's
/// options, the source, and each header. If the compiler's version is among these, a new compiler makes it anew; if not,
/// a kernel in the cache needs no compiler. Blocks while it is made, here or, for at most 120 s, by another process. A
/// folder that cannot be used, for lack of space or rights, is logged and not used.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # // SAFETY: the only thread.
/// # unsafe { std::env::set_var("MSCCLPP_CACHE_DIR", folder.path()) };
/// use mscclpp_gpu::cached_ptx;
///
/// let compile = || Ok(".version 8.0".to_owned());
/// let ptx = cached_ptx("add_one.cu", &["nvcc 13.0", "-arch=compute_90", "__global__ ..."], compile)?;
/// assert_eq!(ptx, ".version 8.0");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::Cache`] if others may write to the folder; [`Error::System`] if a file in it cannot be read; the errors of
/// `make`.
pub fn cached_ptx(name: &str, made_from: &[&str], make: impl FnOnce() -> Result<String>) -> Result<String> {
    let ptx = get_or_make(&Entry::new(name, "ptx", made_from), || make().map(String::into_bytes))?;
    Ok(String::from_utf8_lossy(&ptx).into_owned())
}

/// Returns the folder, and makes it if it is missing; none if it cannot be made.
fn folder() -> Result<Option<PathBuf>> {
    let Some(folder) = env::cache_folder() else { return Ok(None) };
    if let Err(error) = make_folder(&folder) {
        tracing::warn!(target: "mscclpp::gpu", %error, folder = %folder.display(), "kernels are not cached");
        return Ok(None);
    }
    check(&folder)?;
    Ok(Some(folder))
}

fn make_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Checks that only this user and root may write to it.
fn check(path: &Path) -> Result<()> {
    let metadata =
        fs::metadata(path).map_err(|e| Error::system(format!("looking at {}", path.display()), e))?;
    refuse_others(path, &metadata)
}

fn refuse_others(path: &Path, metadata: &fs::Metadata) -> Result<()> {
    let user = rustix::process::geteuid().as_raw();
    let reason = if metadata.uid() != user && metadata.uid() != 0 {
        format!("it belongs to user {}, this is user {user}", metadata.uid())
    } else if metadata.mode() & 0o022 != 0 {
        format!("its mode is {:o}, so that others may write to it", metadata.mode() & 0o7777)
    } else {
        return Ok(());
    };
    Err(Error::Cache { path: path.to_owned(), reason })
}

fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let failed = |e| Error::system(format!("reading {}", path.display()), e);
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(e)),
    };
    refuse_others(path, &file.metadata().map_err(failed)?)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(failed)?;
    Ok(Some(bytes))
}

/// The longest time that another process may take to make an entry. After that, this process makes it too.
const LOCK_TIMEOUT: Duration = Duration::from_secs(120);

/// Waits until no other process makes the entry. The lock ends with the file, and with its process.
fn lock(path: &Path) -> io::Result<File> {
    let path = path.with_extension("lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => thread::sleep(Duration::from_millis(20)),
            Err(error) => return Err(error.into()),
        }
    }
}

fn keep(path: &Path, bytes: &[u8]) {
    if let Err(error) = write(path, bytes) {
        tracing::warn!(target: "mscclpp::gpu", %error, path = %path.display(), "a compiled kernel is not cached");
    }
}

/// Writes an entry by a rename (invariant 1).
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.persist(path).map(drop).map_err(|e| e.error)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn entries_differ_with_every_part_and_their_bounds() {
        let file = |name: &str, parts: &[&str]| Entry::new(name, "so", parts).file;
        assert_eq!(file("a b.cu", &["x"]), file("a b.cu", &["x"]));
        assert!(file("a b.cu", &["x"]).starts_with("a_b_cu-"));
        assert_ne!(file("a", &["x", "y"]), file("a", &["xy"]));
        assert_ne!(file("a", &["x", "y"]), file("a", &["y", "x"]));
        let source = KernelSource::new("a.cu", "text");
        let other = source.with_headers(&[("a.hpp", "")]);
        assert_ne!(beforehand(&source, 80).file, beforehand(&other, 80).file);
        assert_ne!(beforehand(&source, 80).file, beforehand(&source, 90).file);
    }

    #[test]
    fn what_others_may_write_to_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let source = KernelSource::new("a.cu", "text");
        let path = store_ptx(folder.path(), &source, 80, "ptx").unwrap();
        assert_eq!(read(&path).unwrap().as_deref(), Some(&b"ptx"[..]));
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();

        mode(&path, 0o620);
        let error = read(&path).unwrap_err();
        assert!(matches!(&error, Error::Cache { path: refused, .. } if *refused == path), "{error}");
        mode(&path, 0o600);
        mode(folder.path(), 0o777);
        let error = store_ptx(folder.path(), &source, 80, "ptx").unwrap_err();
        assert!(
            error.to_string().contains("mode is 777") && error.to_string().contains("chmod go-w"),
            "{error}"
        );
    }

    #[test]
    fn one_of_many_makes_an_entry() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("entry.so");
        let made = std::sync::atomic::AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let bytes = get_or_make_at(&path, || {
                        made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        thread::sleep(Duration::from_millis(50));
                        Ok(vec![7; 1000])
                    });
                    assert_eq!(bytes.unwrap(), [7; 1000]);
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
    }
}
