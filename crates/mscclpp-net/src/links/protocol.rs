use crate::wire::{Malformed, Reader};

use super::{Error, handshake::Refusal};

/// The protocol by which a transport talks to its peers. Two sides understand each other only if all its fields are
/// equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protocol {
    /// The label of its proofs, such as `mscclpp-ethernet`. A proof made for one transport is worth nothing to another.
    pub name: &'static str,
    /// Its name in messages, such as `Ethernet`.
    pub title: &'static str,
    /// The first bytes of everything that is sent.
    pub magic: [u8; 4],
    /// The version, which follows the magic. Raised with every change of what is sent.
    pub version: u32,
}

impl Protocol {
    /// Magic and version, with which every message of this protocol begins.
    #[must_use]
    pub fn begin(&self) -> Vec<u8> {
        [&self.magic[..], &self.version.to_le_bytes()].concat()
    }

    /// Reads what [`Protocol::begin`] wrote. Call it before anything else is looked at.
    ///
    /// # Errors
    /// [`Error::Version`] if a peer of another version wrote it, [`Error::Malformed`] if it was not written by this
    /// protocol at all.
    pub fn check(&self, reader: &mut Reader<'_>) -> Result<(), Error> {
        self.front(reader).map_err(|refusal| match refusal {
            Refusal::Version { theirs, ours } => Error::Version { protocol: self.title, theirs, ours },
            _ => Malformed("it was not made by this transport").into(),
        })
    }

    /// Like [`Protocol::check`], in a handshake.
    pub(super) fn front(&self, reader: &mut Reader<'_>) -> Result<(), Refusal> {
        if reader.array() != Ok(self.magic) {
            return Err(Refusal::Foreign);
        }
        let (theirs, ours) = (reader.u32()?, self.version);
        if theirs == ours { Ok(()) } else { Err(Refusal::Version { theirs, ours }) }
    }

    /// A label that keeps the proofs of one side, or the keys derived from them, apart from all others.
    pub(super) fn label(&self, of: &str) -> Vec<u8> {
        format!("{} {of}\0", self.name).into_bytes()
    }
}
