use crate::wire::{Malformed, Reader};

use super::Error;

/// The protocol by which a transport talks to its peers. Two sides understand each other only if all its fields are
/// equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protocol {
    /// The label in the proofs, such as `mscclpp-ethernet`. A proof made for one transport is worth nothing to
    /// another.
    pub name: &'static str,
    /// The name in messages, such as `Ethernet`.
    pub title: &'static str,
    /// The first bytes of everything that is sent.
    pub magic: [u8; 4],
    /// The version, which follows the magic. It is raised with every change of what is sent.
    pub version: u32,
}

impl Protocol {
    /// Returns magic and version, with which every message of this protocol begins.
    #[must_use]
    pub fn begin(&self) -> Vec<u8> {
        [&self.magic[..], &self.version.to_le_bytes()].concat()
    }

    /// Reads the bytes that [`Protocol::begin`] wrote. Call it before anything else is read.
    ///
    /// # Errors
    /// [`Error::Version`] if a peer of another version wrote them, [`Error::Malformed`] if they were not written by
    /// this protocol at all.
    pub fn check(&self, reader: &mut Reader<'_>) -> Result<(), Error> {
        match self.version_of(reader)? {
            theirs if theirs == self.version => Ok(()),
            theirs => Err(Error::Version { protocol: self.title, theirs, ours: self.version }),
        }
    }

    /// Reads the version that [`Protocol::begin`] wrote.
    pub(super) fn version_of(&self, reader: &mut Reader<'_>) -> Result<u32, Malformed> {
        match reader.take::<[u8; 4]>() {
            Ok(magic) if magic == self.magic => reader.take(),
            _ => Err(Malformed("it was not made by this transport")),
        }
    }
}
