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

/// How a link from a peer ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InboundEnd {
    /// The peer, or its system, ended it.
    Ended,
    /// Nothing comes from the peer's host any more.
    Silence,
}

impl InboundLink {
    pub(super) fn new(stream: TcpStream, request: Request, session: &Session) -> Result<Self, SystemError> {
        Liveness::PROMPT.apply(&stream).during("setting up a link")?;
        // Or what is said right behind the handshake's answer would wait for the acknowledgement of that.
        stream.set_nodelay(true).during("setting up a link")?;
        Ok(Self { stream, request, outbound: Outbound::new(&session.responder) })
    }

    pub(super) fn say(&self, message: Message) {
        // A link carries so little that it always fits the buffer of its socket. If the connection has failed, the peer sees
        // that.
        let _ = (&self.stream).write(&self.outbound.seal(message));
    }

    /// How the link has ended, if it has.
    pub(super) fn end(&self) -> Option<InboundEnd> {
        match read_some(&self.stream, &mut [0]) {
            Ok(None) => None,
            Err(error) if is_silence(&error) => Some(InboundEnd::Silence),
            _ => Some(InboundEnd::Ended),
        }
    }
}
