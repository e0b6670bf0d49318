//! What is sent, without any socket, thread or clock: tested as a pair in memory.
//!
//! A connection begins with a [`handshake`], in which both ends prove that they have the key of the endpoint that is
//! connected to. It gives a key for each direction, and from then on everything is a [`frame`]: a header with a keyed
//! check, and behind that of a write its bytes.

use mscclpp_net::wire::Reader;

use self::handshake::Refusal;

pub(crate) mod frame;
pub(crate) mod handshake;
pub(crate) mod seal;

/// The version of everything in here, and of the blobs. Raised with every change.
pub(crate) const VERSION: u32 = 1;
/// The first bytes of everything of this transport.
pub(crate) const MAGIC: [u8; 4] = *b"MSCE";

/// Magic and version, with which everything of this transport begins.
pub(crate) fn begin() -> Vec<u8> {
    [&MAGIC[..], &VERSION.to_le_bytes()].concat()
}

/// Reads what [`begin`] wrote. Compared before anything else is looked at.
pub(crate) fn front(reader: &mut Reader<'_>) -> Result<(), Refusal> {
    if reader.array() != Ok(MAGIC) {
        return Err(Refusal::Foreign);
    }
    match reader.u32()? {
        VERSION => Ok(()),
        theirs => Err(Refusal::Version { theirs }),
    }
}
