//! The kinds of frames that follow the handshake, in the format of [`mscclpp_net::frame`].

pub use mscclpp_net::frame::{FrameReader, HEADER};

/// The largest payload of a frame; longer messages travel in several frames.
pub const MAX_PAYLOAD: usize = 32 * 1024;
/// The largest payload of a frame of the handshake: the most that a stranger can make this side keep.
pub const MAX_HANDSHAKE: usize = 4 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A message, or its first part.
    Message = 16,
    /// A further part of a message.
    Rest = 17,
    /// The number of bytes that the receiver has taken in; the sender may send as many more.
    Credit = 18,
    /// The failure of the job, and the reason.
    Notice = 19,
    /// The departure of the sender, which has sent everything that it had to send.
    Goodbye = 20,
    /// The end of the sender's messages on this one of two connections.
    Retire = 21,
    /// Formation: the addresses at which the sender listens, and its node.
    Join = 32,
    /// Formation: ranks that are still missing.
    Progress = 33,
    /// Formation: a part of the table of ranks.
    Table = 34,
    /// Formation: the sender's whole subtree is connected.
    Ready = 35,
    /// Formation: all ranks are connected.
    Go = 36,
    /// Formation: rank 0 closes the connections over which the job formed.
    Dismiss = 37,
    /// Formation: the addresses at which the receiver's parent in the tree listens.
    Parent = 38,
}

impl TryFrom<u8> for Kind {
    type Error = ();

    fn try_from(byte: u8) -> Result<Self, ()> {
        use Kind::{
            Credit, Dismiss, Go, Goodbye, Join, Message, Notice, Parent, Progress, Ready, Rest, Retire, Table,
        };
        let all = [
            Message, Rest, Credit, Notice, Goodbye, Retire, Join, Progress, Table, Ready, Go, Dismiss, Parent,
        ];
        all.into_iter().find(|kind| *kind as u8 == byte).ok_or(())
    }
}

pub type Frame = mscclpp_net::frame::Frame<Kind>;

/// Encodes a frame.
///
/// The payload must be at most [`MAX_PAYLOAD`] bytes long; every caller keeps to that.
pub fn encode(kind: Kind, payload: &[u8]) -> Vec<u8> {
    debug_assert!(payload.len() <= MAX_PAYLOAD);
    mscclpp_net::frame::encode(kind as u8, payload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mscclpp_net::handshake;

    #[test]
    fn every_kind_has_a_byte_of_its_own() {
        let known: Vec<_> = (0..=255).filter_map(|byte| Some((Kind::try_from(byte).ok()?, byte))).collect();
        assert_eq!(known.len(), 13);
        assert!(known.iter().all(|(kind, byte)| *kind as u8 == *byte));
        assert!(known.iter().all(|(_, byte)| handshake::Kind::try_from(*byte).is_err()));
        assert_eq!((0..=255_u8).filter(|byte| handshake::Kind::try_from(*byte).is_ok()).count(), 6);
    }
}
