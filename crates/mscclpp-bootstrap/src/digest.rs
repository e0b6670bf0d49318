//! Digests of texts and bytes, which are the same in all processes.

use sha2::{Digest, Sha256};

/// Returns the first bytes of the SHA-256 digest of these parts, one behind the other.
pub(crate) fn digest<const N: usize>(parts: &[&[u8]]) -> [u8; N] {
    let digest = Sha256::digest(parts.concat());
    std::array::from_fn(|i| digest[i])
}
