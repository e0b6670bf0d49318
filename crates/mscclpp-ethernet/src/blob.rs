//! The part of a region's description that is sent to peers.
//!
//! ```text
//! magic 4 | version 4 | region id 8 | length 8 | the region's address modulo 8
//! ```
//! The part of an endpoint is its address ([`mscclpp_net::links::Address`]). A process that has the address can write into
//! every region of the endpoint's owner whose id it knows as well.

use mscclpp_net::{
    links::Protocol,
    wire::{Malformed, Reader, Wire},
};

use crate::error::{Error, Result};

/// The protocol. Its version is raised with every change of frames, blobs or the messages of [`mscclpp_net::links`].
pub(crate) const PROTOCOL: Protocol =
    Protocol { name: "mscclpp-ethernet", title: "Ethernet", magic: *b"MSCE", version: 5 };

const WHAT: &str = "a registered memory";

/// The id, length and alignment of a region, as a peer receives them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RegionBlob {
    pub(crate) id: u64,
    pub(crate) len: u64,
    /// The region's address modulo 8, which tells at which offsets words are aligned.
    pub(crate) misalignment: u8,
}

impl RegionBlob {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = PROTOCOL.begin();
        (self.id, self.len, self.misalignment).put(&mut out);
        out
    }

    /// Reads a blob. `id` and `len` are those in the envelope around it, which must agree.
    pub(crate) fn decode(bytes: &[u8], id: u64, len: u64) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        PROTOCOL.check(&mut reader).map_err(|error| Error::in_part_of(WHAT, error))?;
        Self::read(reader.rest(), id, len)
            .map_err(|Malformed(problem)| Error::Malformed { what: WHAT, problem })
    }

    fn read(bytes: &[u8], id: u64, len: u64) -> Result<Self, Malformed> {
        let (own_id, own_len, misalignment) = <(u64, u64, u8)>::parse(bytes)?;
        if misalignment >= 8 {
            return Err(Malformed("its address modulo 8 is 8 or more"));
        }
        match (own_id, own_len) == (id, len) {
            true => Ok(Self { id, len, misalignment }),
            false => Err(Malformed("it belongs to a different region than the memory it came in")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_survives_its_journey() {
        let blob = RegionBlob { id: 5, len: 6, misalignment: 7 };
        assert_eq!(RegionBlob::decode(&blob.encode(), 5, 6).unwrap(), blob);
        for (id, len) in [(4, 6), (5, 7)] {
            assert!(RegionBlob::decode(&blob.encode(), id, len).is_err());
        }
    }

    #[test]
    fn truncated_extended_and_of_another_version() {
        let bytes = RegionBlob { id: 5, len: 6, misalignment: 0 }.encode();
        for len in 0..bytes.len() {
            assert!(RegionBlob::decode(&bytes[..len], 5, 6).is_err(), "{len} bytes");
        }
        assert!(RegionBlob::decode(&[&bytes[..], &[0]].concat(), 5, 6).is_err());
        let mut newer = bytes;
        newer[4] += 1;
        let text = RegionBlob::decode(&newer, 5, 6).unwrap_err().to_string();
        assert!(text.contains("version 6") && text.contains("version 5"), "{text}");
    }
}
