//! Proofs that both ends of a connection have the same key.
//!
//! A handshake sends random bytes as a challenge, keeps a [`Transcript`] of everything that was said, and lets each end
//! prove it. A proof is an HMAC-SHA256, under the key, of a label of the side that makes it and of the transcript. So
//! an old proof is worth nothing, and neither is a proof of the other side or of another protocol. What is said, and in
//! which order, is up to the handshake.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// Random bytes that one handshake uses once.
pub type Nonce = [u8; 32];

/// A side's proof, over a transcript, that it has the key.
pub type Proof = [u8; Key::LEN];

/// A secret that two sides share.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; Self::LEN]);

impl Key {
    /// The length in bytes of a key, and of a proof.
    pub const LEN: usize = 32;

    /// The key with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// Derives a key from a text, for one `purpose`.
    #[must_use]
    pub fn of_text(purpose: &[u8], text: &str) -> Self {
        Self(Sha256::new().chain_update(purpose).chain_update(text).finalize().into())
    }

    /// The key's bytes.
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        self.0
    }
}

/// Does not show the key.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(hidden)")
    }
}

/// What has been said so far, and the key under which it is proved.
pub struct Transcript {
    key: Key,
    said: Vec<u8>,
}

impl Transcript {
    /// A transcript in which nothing has been said yet.
    #[must_use]
    pub fn new(key: Key) -> Self {
        Self { key, said: Vec::new() }
    }

    /// Adds what either side said.
    pub fn add(&mut self, said: &[u8]) -> &mut Self {
        self.said.extend_from_slice(said);
        self
    }

    fn mac(&self, side: &[u8]) -> Hmac<Sha256> {
        // HMAC fills a key up to the hash's block with zeros; done here, no length can be wrong.
        let mut block = [0; 64];
        block[..Key::LEN].copy_from_slice(&self.key.0);
        Hmac::<Sha256>::new(&block.into()).chain_update(side).chain_update(&self.said)
    }

    /// The proof of everything so far, as `side`. Only a holder of the key can make it.
    #[must_use]
    pub fn prove(&self, side: &[u8]) -> Proof {
        self.mac(side).finalize().into_bytes().into()
    }

    /// Checks a proof of `side`. Takes the same time whether it is right or wrong.
    #[must_use]
    pub fn verify(&self, side: &[u8], proof: &[u8]) -> bool {
        self.mac(side).verify_slice(proof).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript(key: u8, said: &[u8]) -> Transcript {
        let mut transcript = Transcript::new(Key::from_bytes([key; 32]));
        transcript.add(said);
        transcript
    }

    #[test]
    fn a_proof_is_of_one_key_one_side_and_one_transcript() {
        let proof = transcript(1, b"hello").prove(b"a");
        assert!(transcript(1, b"hello").verify(b"a", &proof));
        assert!(!transcript(2, b"hello").verify(b"a", &proof));
        assert!(!transcript(1, b"hello").verify(b"b", &proof));
        assert!(!transcript(1, b"hello!").verify(b"a", &proof));
        assert!(!transcript(1, b"hello").verify(b"a", &proof[..31]));
    }

    /// Test case 2 of RFC 4231, whose key is filled up with zeros like every shorter one.
    #[test]
    fn proofs_are_hmac_sha256() {
        let mut key = [0; 32];
        key[..4].copy_from_slice(b"Jefe");
        let mut transcript = Transcript::new(Key::from_bytes(key));
        transcript.add(b"ya want ").add(b"for nothing?");
        assert_eq!(transcript.prove(b"what do ")[..4], [0x5b, 0xdc, 0xc1, 0x46]);
    }

    #[test]
    fn a_key_is_never_shown() {
        assert_eq!(format!("{:?}", Key::from_bytes([7; 32])), "Key(hidden)");
    }
}
