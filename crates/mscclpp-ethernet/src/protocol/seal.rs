use siphasher::sip::SipHasher24;

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
