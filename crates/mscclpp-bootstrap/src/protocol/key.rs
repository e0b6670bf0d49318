//! The key of a job, and proofs that one has it.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// What members of a job have in common.
#[derive(Clone)]
pub(crate) struct Key {
    bytes: [u8; 32],
    /// Whether it is a secret, and not the key of jobs that have none.
    pub(crate) secret: bool,
}

impl Key {
    pub(crate) fn of_unique_id(bytes: [u8; 32]) -> Self {
        Self { bytes, secret: true }
    }

    pub(crate) fn of_secret(secret: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"mscclpp-bootstrap secret\0");
        hash.update(secret.as_bytes());
        Self { bytes: hash.finalize().into(), secret: true }
    }

    pub(crate) fn none() -> Self {
        Self { bytes: [0; 32], secret: false }
    }

    fn mac(&self, side: &[u8], transcript: &[u8]) -> Hmac<Sha256> {
        // HMAC fills a key up to the hash's block with zeros; done here, no length can be wrong.
        let mut block = [0; 64];
        block[..32].copy_from_slice(&self.bytes);
        let mut mac = Hmac::<Sha256>::new(&block.into());
        mac.update(side);
        mac.update(transcript);
        mac
    }

    /// What only somebody with this key can say of a transcript.
    pub(crate) fn prove(&self, side: &[u8], transcript: &[u8]) -> [u8; 32] {
        self.mac(side, transcript).finalize().into_bytes().into()
    }

    /// Checks a proof, in a time that does not depend on it.
    pub(crate) fn verify(&self, side: &[u8], transcript: &[u8], proof: &[u8]) -> bool {
        self.mac(side, transcript).verify_slice(proof).is_ok()
    }
}
