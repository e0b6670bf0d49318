//! The parsers of bytes from outside, for fuzz targets. They are not part of the API.

use mscclpp_net::links::header::{Fields, Inbound, Outbound};

use crate::{
    blob::RegionBlob,
    frame::Frame,
    receiving::played::{SEAL, Stage},
};

/// Gives `bytes` to every parser of this crate.
pub fn parse_everything(bytes: &[u8]) {
    let _ = RegionBlob::decode(bytes, 1, bytes.len() as u64);
    if let Some(header) = bytes.first_chunk() {
        let _ = Frame::open(&mut Inbound::new(&SEAL), header);
    }
    // A member sends this with a valid seal.
    if let Some((&[kind, flag], rest)) = bytes.split_first_chunk()
        && let Some(small) = rest.first_chunk()
    {
        let small = u32::from_le_bytes(*small);
        let _ = Frame::try_from(Fields { kind, flag, small, numbers: [0; 3] });
    }
}

/// A receiving process, fed by the fuzzer.
pub struct Receiving(Stage);

impl Receiving {
    /// A receiving process with one region of 4 KiB.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "it is a scene, not a value")]
    pub fn new() -> Self {
        Self(Stage::new())
    }

    /// Plays the bytes to the receiver as they are, and then as sealed frames, one for every 26 bytes.
    ///
    /// # Panics
    /// If memory outside the region was written.
    pub fn feed(&self, bytes: &[u8]) {
        self.0.play(bytes, 1);
        let outbound = Outbound::new(&SEAL);
        let mut said = Vec::new();
        let (chunks, _) = bytes.as_chunks::<26>();
        for chunk in chunks {
            let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| chunk[at + i]));
            let region = if chunk[1] == 0 { number(2) } else { self.0.region.id() };
            let (offset, third) = (number(10), number(18));
            said.extend(outbound.seal(match chunk[0] % 4 {
                0 if third == 0 => Frame::Goodbye,
                0 => Frame::Flush { ticket: third },
                1 => Frame::Update { region, offset, value: third },
                2 => Frame::Write { region, offset, len: third, checksum: None },
                _ => Frame::Write { region, offset, len: third, checksum: Some(offset as u32) },
            }));
            if chunk[0] % 4 > 1 && third < 4096 {
                said.resize(said.len() + third as usize, chunk[0]);
            }
        }
        self.0.play(&said, bytes.len() as u64);
        self.0.bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob::PROTOCOL;
    use fastrand::Rng;

    #[test]
    fn random_bytes_never_panic() {
        let (receiving, mut random) = (Receiving::new(), Rng::with_seed(3));
        for round in 0..10_000usize {
            let mut bytes: Vec<u8> = (0..round % 200).map(|_| random.u8(..)).collect();
            // Half of them begin as real blobs do.
            if round % 2 == 0 && bytes.len() >= 8 {
                bytes[..8].copy_from_slice(&PROTOCOL.begin());
            }
            parse_everything(&bytes);
            receiving.feed(&bytes);
        }
    }
}
