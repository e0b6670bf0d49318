//! The key of a job.

use mscclpp_net::key::Key;

/// What members of a job have in common.
#[derive(Clone)]
pub(crate) struct JobKey {
    pub(crate) key: Key,
    /// Whether it is a secret, and not the key of jobs that have none.
    pub(crate) secret: bool,
}

impl JobKey {
    pub(crate) fn of_unique_id(bytes: [u8; 32]) -> Self {
        Self { key: Key::from_bytes(bytes), secret: true }
    }

    pub(crate) fn of_secret(secret: &str) -> Self {
        Self { key: Key::of_text(b"mscclpp-bootstrap secret\0", secret), secret: true }
    }

    pub(crate) fn none() -> Self {
        Self { key: Key::from_bytes([0; 32]), secret: false }
    }
}
