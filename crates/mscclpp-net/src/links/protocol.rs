use crate::wire::{Malformed, Reader};

use super::{Error, handshake::Refusal};

/// What a transport speaks to its peers. Two sides understand each other only if all of it is alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protocol {
    /// The label of its proofs, such as `mscclpp-ethernet`. What proves a peer to one transport is worth nothing to another.
    pub name: &'static str,
    /// What messages call it, such as `Ethernet`.
    pub title: &'static str,
    /// The first bytes of everything that it sends.
    pub magic: [u8; 4],
    /// The bytes behind these. Raised with every change of what is sent.
    pub version: u32,
}

impl Protocol {
    /// Magic and version, with which everything of this protocol begins.
    #[must_use]
    pub fn begin(&self) -> Vec<u8> {
        [&self.magic[..], &self.version.to_le_bytes()].concat()
    }

    /// Reads what [`Protocol::begin`] wrote. To be called before anything else is looked at.
    ///
    /// # Errors
    /// [`Error::Version`] if a peer of another version wrote it, [`Error::Malformed`] if no peer of this protocol did.
    pub fn check(&self, reader: &mut Reader<'_>) -> Result<(), Error> {
        self.front(reader).map_err(|refusal| match refusal {
            Refusal::Version { theirs, ours } => Error::Version { protocol: self.title, theirs, ours },
            _ => Malformed("it was not made by this transport").into(),
        })
    }

    /// As [`Protocol::check`], in a handshake.
    pub(super) fn front(&self, reader: &mut Reader<'_>) -> Result<(), Refusal> {
        if reader.array() != Ok(self.magic) {
            return Err(Refusal::Foreign);
        }
        let (theirs, ours) = (reader.u32()?, self.version);
        if theirs == ours { Ok(()) } else { Err(Refusal::Version { theirs, ours }) }
    }

    /// What distinguishes the proofs of one side, or what is derived from them.
    pub(super) fn label(&self, of: &str) -> Vec<u8> {
        format!("{} {of}\0", self.name).into_bytes()
    }
}
