//! The frames that follow the handshake, in the envelope of [`mscclpp_net::frame`].

pub(crate) use mscclpp_net::frame::{FrameReader, HEADER};

/// The largest payload of a frame; messages that are longer travel in several.
pub(crate) const MAX_PAYLOAD: usize = 32 * 1024;
/// The largest payload of a frame of the handshake: all that a stranger can make us keep.
pub(crate) const MAX_HANDSHAKE: usize = 4 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A message, or its beginning.
    Message = 16,
    /// More of the message.
    Rest = 17,
    /// This many bytes have been taken in; send as many more.
    Credit = 18,
    /// The job has failed, and why.
    Notice = 19,
    /// I leave; all I had to send has been sent.
    Goodbye = 20,
    /// I will send nothing more on this of our two connections.
    Retire = 21,
    /// Formation: where I listen and on which host I am.
    Join = 32,
    /// Formation: ranks that are still missing.
    Progress = 33,
    /// Formation: a part of the table of ranks.
    Table = 34,
    /// Formation: my whole subtree is connected.
    Ready = 35,
    /// Formation: everybody is.
    Go = 36,
    /// Formation: rank 0 closes the connections over which the job formed.
    Dismiss = 37,
    /// Formation: where your parent in the tree listens.
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

pub(crate) type Frame = mscclpp_net::frame::Frame<Kind>;

/// The bytes of a frame.
///
/// The payload must not be over [`MAX_PAYLOAD`]; what makes frames keeps to it.
pub(crate) fn encode(kind: Kind, payload: &[u8]) -> Vec<u8> {
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
