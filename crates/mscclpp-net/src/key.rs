//! Keys that processes share.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::wire_struct;

/// Random bytes that one handshake uses once.
pub type Nonce = [u8; 32];

/// A secret that two sides share.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    bytes: [u8; 32],
}

wire_struct!(Key { bytes });

impl Key {
    /// Makes a key of these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self { bytes }
    }

    /// Derives a key from a text, for one `purpose`.
    #[must_use]
    pub fn of_text(purpose: &[u8], text: &str) -> Self {
        Self { bytes: Sha256::new().chain_update(purpose).chain_update(text).finalize().into() }
    }

    /// Returns the key's bytes.
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; 32] {
        self.bytes
    }
}

/// Prints a placeholder instead of the key.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(hidden)")
    }
}
