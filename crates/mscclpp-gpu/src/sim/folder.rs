//! The temporary folder in which a kernel is compiled. The folders of processes that were killed are removed by later ones.

use std::{
    fs::{self, File, Metadata},
    os::unix::fs::MetadataExt,
    path::Path,
    sync::Once,
};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use tempfile::TempDir;

use crate::{Error, Result};

const PREFIX: &str = "mscclpp-kernel-";

/// A folder, which is removed when this is dropped. As long as its process lives, it has the lock of the folder.
pub(super) struct Folder {
    folder: TempDir,
    _lock: Option<File>,
}

impl Folder {
    pub(super) fn new() -> Result<Self> {
        let within = std::env::temp_dir();
        static CLEARED: Once = Once::new();
        CLEARED.call_once(|| remove_abandoned(&within));
        Self::within(&within)
    }

    fn within(within: &Path) -> Result<Self> {
        loop {
            let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(within).map_err(|error| {
                let within = within.display();
                Error::system(
                    format!(
                        "making a folder to compile a kernel in, in {within} (TMPDIR names another place)"
                    ),
                    error,
                )
            })?;
            let lock = lock_of(folder.path(), FlockOperation::LockExclusive);
            // A process that removes abandoned folders may have been faster. Where nothing can be locked, nothing is removed.
            if lock.is_some() || folder.path().exists() {
                return Ok(Self { folder, _lock: lock });
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes the folders of this user whose lock nobody has.
fn remove_abandoned(within: &Path) {
    let Ok(entries) = fs::read_dir(within) else { return };
    for entry in
        entries.flatten().filter(|entry| entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()))
    {
        if let Some(_lock) = lock_of(&entry.path(), FlockOperation::NonBlockingLockExclusive) {
            // If it cannot be removed, a later process may be able to.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Locks a folder. Returns `None` if it is not a folder of this user, is locked, or was removed meanwhile.
fn lock_of(path: &Path, how: FlockOperation) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = File::from(open(path, flags, Mode::empty()).ok()?);
    let same =
        |there: &Metadata, locked: &Metadata| (there.dev(), there.ino()) == (locked.dev(), locked.ino());
    let locked =
        folder.metadata().ok().filter(|folder| folder.uid() == rustix::process::geteuid().as_raw())?;
    flock(&folder, how).ok()?;
    fs::symlink_metadata(path).is_ok_and(|there| same(&there, &locked)).then_some(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abandoned_folders_are_removed_and_others_stay() {
        let within = tempfile::tempdir().unwrap();
        let path = |name: &str| within.path().join(name);
        fs::create_dir_all(path("mscclpp-kernel-gone").join("folder")).unwrap();
        fs::create_dir(path("other")).unwrap();
        std::os::unix::fs::symlink(path("other"), path("mscclpp-kernel-link")).unwrap();
        let used = Folder::within(within.path()).unwrap();
        remove_abandoned(within.path());
        assert!(!path("mscclpp-kernel-gone").exists());
        for stays in [used.path(), &path("other"), &path("mscclpp-kernel-link")] {
            assert!(stays.exists(), "{}", stays.display());
        }
    }

    #[test]
    fn a_place_that_cannot_be_written_to_is_named_with_its_variable() {
        let error = Folder::within(Path::new("/proc/self")).map(drop).unwrap_err().to_string();
        assert!(error.contains("in /proc/self (TMPDIR names another place)"), "{error}");
    }
}
