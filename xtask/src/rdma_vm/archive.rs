//! An archive of files in the format that the kernel unpacks into memory when it boots: cpio, in the variant "newc".

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::error::{Error, FileContext};

const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

/// The name of the entry that ends an archive. More archives may follow it.
const TRAILER: &str = "TRAILER!!!";

/// An archive that is being made. Everything in it belongs to root. A folder must be added before its content.
#[derive(Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// Adds a folder. `path` has no leading slash in all these functions.
    pub(super) fn folder(&mut self, path: &str, permissions: u32) {
        self.entry(path, FOLDER | permissions, b"");
    }

    /// Adds a file.
    pub(super) fn file(&mut self, path: &str, permissions: u32, content: &[u8]) {
        self.entry(path, FILE | permissions, content);
    }

    /// Adds a symbolic link.
    pub(super) fn link(&mut self, path: &str, target: &str) {
        self.entry(path, LINK | 0o777, target.as_bytes());
    }

    /// Adds the file, symbolic link, or folder (without its content) at `source` on this machine, as `path`.
    pub(super) fn copy(&mut self, path: &str, source: &Path, metadata: &Metadata) -> Result<(), Error> {
        if metadata.is_dir() {
            self.folder(path, metadata.mode() & 0o777);
        } else if metadata.is_symlink() {
            let target = std::fs::read_link(source).context("read", source)?;
            self.link(path, &target.to_string_lossy());
        } else {
            self.file(path, metadata.mode() & 0o777, &std::fs::read(source).context("read", source)?);
        }
        Ok(())
    }

    /// Ends the archive, and returns it. Its length is a multiple of 4, so another one may be appended.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry(TRAILER, 0, b"");
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let length = |bytes: usize| u32::try_from(bytes).expect("no file in a machine has 4 GiB");
        let (inode, user, group, links, time, device) = (self.entries, 0, 0, 1, 0, 0);
        let fields = [
            inode,
            mode,
            user,
            group,
            links,
            time,
            length(content.len()),
            device,
            device,
            device,
            device,
            length(path.len() + 1),
            0, // a checksum, which this variant does not have
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_a_header_of_110_bytes_and_aligned_content() {
        let mut archive = Archive::default();
        archive.file("a", 0o644, b"hello");
        let header = "07070100000001000081a40000000000000000000000010000000000000005\
                      00000000000000000000000000000000000000020000000000";
        let header = &header[..110];
        assert!(archive.bytes.starts_with(header.as_bytes()));
        assert_eq!(&archive.bytes[110..], b"a\0hello\0\0\0");
    }

    #[test]
    fn an_archive_ends_aligned_so_that_another_can_follow() {
        let mut archive = Archive::default();
        archive.link("bin", "usr/bin");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        assert!(String::from_utf8_lossy(&bytes).trim_end_matches('\0').ends_with(TRAILER));
    }
}
