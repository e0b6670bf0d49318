use std::{io::Write, net::TcpStream};

use crate::{
    SystemCall, SystemError,
    handshake::Session,
    socket::{Liveness, is_silence, read_some},
};

use super::{handshake::Request, header::Outbound, message::Message};

/// A link from a peer's endpoint to one of ours. Only this side speaks on it.
pub(super) struct InboundLink {
    stream: TcpStream,
    pub(super) request: Request,
    outbound: Outbound,
}

/// The way in which a link from a peer ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InboundEnd {
    /// The peer, or its system, ended the link.
    Ended,
    /// Nothing comes from the peer's node any more.
    Silence,
}

impl InboundLink {
    pub(super) fn new(stream: TcpStream, request: Request, session: &Session) -> Result<Self, SystemError> {
        Liveness::PROMPT.apply(&stream).during("setting up a link")?;
        // Without this, a message right behind the answer of the handshake would wait for the acknowledgement of that
        // answer.
        stream.set_nodelay(true).during("setting up a link")?;
        Ok(Self { stream, request, outbound: Outbound::new(&session.responder) })
    }

    pub(super) fn say(&self, message: Message) {
        // A link carries so little that a message always fits the buffer of its socket. If the connection has failed,
        // the peer sees that.
        let _ = (&self.stream).write(&self.outbound.seal(message));
    }

    /// Returns how the link has ended, if it has.
    pub(super) fn end(&self) -> Option<InboundEnd> {
        match read_some(&self.stream, &mut [0]) {
            Ok(None) => None,
            Err(error) if is_silence(&error) => Some(InboundEnd::Silence),
            _ => Some(InboundEnd::Ended),
        }
    }
}
