//! The parsers of bytes from outside, for fuzz targets. Not part of the API.

use mscclpp_net::key::Key;

use crate::{
    blob::{EndpointBlob, RegionBlob},
    protocol::{
        frame::{Frame, Inbound, Outbound},
        handshake::{ANSWER, CHALLENGE, HELLO, Initiator, Purpose, Request, Responder},
        seal::Seal,
    },
    receiving::played::{SEAL, Stage},
};

/// Gives `bytes` to every parser of this crate.
pub fn parse_everything(bytes: &[u8]) {
    let _ = EndpointBlob::decode(bytes);
    let _ = RegionBlob::decode(bytes, 1, bytes.len() as u64);
    let _ = Responder::check_front(bytes);
    let key = Key::from_bytes([1; 32]);
    let request = Request { endpoint: [2; 16], from: [3; 16], link: 4, purpose: Purpose::Link };
    if let Some(hello) = bytes.first_chunk::<HELLO>() {
        let _ = Responder::new([5; 32]).verify(hello, |_| Some(key.clone()), |_| Ok(()));
    }
    if let Some(challenge) = bytes.first_chunk::<CHALLENGE>() {
        let _ = Initiator::answer(&key, &request, [6; 32], challenge);
    }
    let challenge = *Responder::new([5; 32]).challenge();
    if let (Some(answer), Ok((initiator, _))) =
        (bytes.first_chunk::<ANSWER>(), Initiator::answer(&key, &request, [6; 32], &challenge))
    {
        let _ = initiator.conclude(answer);
    }
    if let Some(header) = bytes.first_chunk() {
        let _ = Inbound::new(Seal::from_bytes(&SEAL)).open(header);
    }
}

/// A process that takes what a connection brings.
pub struct Victim(Stage);

impl Victim {
    /// One with a region of 4 KiB.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "it is a scene, not a value")]
    pub fn new() -> Self {
        Self(Stage::new())
    }

    /// Plays the bytes of a stranger, and then those of a member: 25 of each 26 bytes say what a frame with a good seal
    /// holds.
    ///
    /// # Panics
    /// If memory outside the region was written.
    pub fn suffer(&self, bytes: &[u8]) {
        self.0.play(bytes, 1);
        let outbound = Outbound::new(Seal::from_bytes(&SEAL));
        let mut said = Vec::new();
        let (chunks, _) = bytes.as_chunks::<26>();
        for chunk in chunks {
            let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| chunk[at + i]));
            let region = if chunk[1] == 0 { number(2) } else { self.0.region.id() };
            let (offset, third) = (number(10), number(18));
            said.extend(outbound.seal(match chunk[0] % 4 {
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
    use crate::protocol::MAGIC;
    use fastrand::Rng;

    #[test]
    fn random_bytes_never_panic() {
        let (victim, mut random) = (Victim::new(), Rng::with_seed(3));
        for round in 0..10_000usize {
            let mut bytes: Vec<u8> = (0..round % 200).map(|_| random.u8(..)).collect();
            // Half of them begin as the real ones do.
            if round % 2 == 0 && bytes.len() >= 8 {
                bytes[..4].copy_from_slice(&MAGIC);
                bytes[4..8].copy_from_slice(&crate::protocol::VERSION.to_le_bytes());
            }
            parse_everything(&bytes);
            victim.suffer(&bytes);
        }
    }
}
