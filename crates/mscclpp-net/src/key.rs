//! Proofs that both ends of a connection have the same key.
//!
//! A handshake challenges with random bytes, keeps a [`Transcript`] of everything that was said, and lets each end prove
//! it. A proof is an HMAC-SHA256, under the key, of a label of the side that makes it and of the transcript: an old
//! proof, one of the other side and one of another protocol are worth nothing. What is said, and in which order, is the
//! handshake's business.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// Random bytes that a handshake uses once.
pub type Nonce = [u8; 32];

/// What one side says of a transcript to show that it has the key.
pub type Proof = [u8; Key::LEN];

/// A secret that two sides have in common.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; Self::LEN]);

impl Key {
    /// Its length in bytes, and that of a proof.
    pub const LEN: usize = 32;

    /// The key of these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// The key that a text stands for, for one `purpose`.
    #[must_use]
    pub fn of_text(purpose: &[u8], text: &str) -> Self {
        Self(Sha256::new().chain_update(purpose).chain_update(text).finalize().into())
    }

    /// Its bytes.
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

/// What was said so far, and the key under which it is proved.
pub struct Transcript {
    key: Key,
    said: Vec<u8>,
}

impl Transcript {
    /// Nothing was said yet.
    #[must_use]
    pub fn new(key: Key) -> Self {
        Self { key, said: Vec::new() }
    }

    /// Either side said this.
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

    /// What only somebody with the key can say of everything so far, as `side`.
    #[must_use]
    pub fn prove(&self, side: &[u8]) -> Proof {
        self.mac(side).finalize().into_bytes().into()
    }

    /// Checks a proof of `side`, in a time that does not depend on it.
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
