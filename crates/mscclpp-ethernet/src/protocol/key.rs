//! The key of an endpoint, and what is derived from it.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use siphasher::sip::SipHasher24;

/// What whoever was sent an endpoint has in common with its owner.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Key([u8; 32]);

impl Key {
    pub(crate) const LEN: usize = 32;

    pub(crate) fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    pub(crate) fn to_bytes(&self) -> [u8; Self::LEN] {
        self.0
    }

    fn mac(&self, purpose: &[u8], transcript: &[u8]) -> Hmac<Sha256> {
        // HMAC fills a key up to the hash's block with zeros; done here, no length can be wrong.
        let mut block = [0; 64];
        block[..Self::LEN].copy_from_slice(&self.0);
        let mut mac = Hmac::<Sha256>::new(&block.into());
        mac.update(purpose);
        mac.update(transcript);
        mac
    }

    /// What only somebody with this key can say of a transcript.
    pub(crate) fn prove(&self, purpose: &[u8], transcript: &[u8]) -> [u8; 32] {
        self.mac(purpose, transcript).finalize().into_bytes().into()
    }

    /// Checks a proof, in a time that does not depend on it.
    pub(crate) fn verify(&self, purpose: &[u8], transcript: &[u8], proof: &[u8]) -> bool {
        self.mac(purpose, transcript).verify_slice(proof).is_ok()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(hidden)")
    }
}

/// What seals the frames of one direction of one connection: SipHash-2-4 under a key that no other direction and no
/// other connection has, so a frame is worth nothing anywhere else.
#[derive(Clone)]
pub(crate) struct Seal(SipHasher24);

impl Seal {
    pub(crate) fn from_bytes(bytes: &[u8; 16]) -> Self {
        Self(SipHasher24::new_with_key(bytes))
    }

    pub(crate) fn tag(&self, bytes: &[u8]) -> u64 {
        self.0.hash(bytes)
    }
}
