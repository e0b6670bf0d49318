use std::{
    io,
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Instant,
};

use crate::{
    handshake::Session,
    socket::{Incoming, is_silence},
};

use super::{
    LinkEnd, LinkEvents,
    handshake::Request,
    header::{HEADER, Inbound},
    message::{MAX_REASON, Message, PIECE},
};

/// A link from an endpoint of ours to a peer's. Only the peer speaks on it.
pub(super) struct OutboundLink {
    pub(super) stream: TcpStream,
    pub(super) request: Request,
    address: SocketAddr,
    events: Arc<dyn LinkEvents>,
    inbound: Inbound,
    header: Incoming<HEADER>,
    /// The part of a reason that the peer has sent so far.
    reason: Vec<u8>,
    /// The time at which the link ends as lost, and why, if this side knows more than the peer says.
    suspicion: Option<(Instant, Option<String>)>,
}

impl OutboundLink {
    pub(super) fn new(
        stream: TcpStream,
        request: Request,
        address: SocketAddr,
        session: &Session,
        events: Arc<dyn LinkEvents>,
    ) -> Self {
        let (inbound, header) = (Inbound::new(&session.responder), Incoming::default());
        Self { stream, request, address, events, inbound, header, reason: Vec::new(), suspicion: None }
    }

    pub(super) fn events(&self) -> &dyn LinkEvents {
        &*self.events
    }

    /// Suspects the link. It has until `deadline` to end for a reason of its own; after that it ends for the first
    /// reason reported, or if there is none, because the peer says that a connection broke.
    pub(super) fn suspect(&mut self, reason: Option<String>, deadline: Instant) {
        let (_, known) = self.suspicion.get_or_insert((deadline, None));
        *known = known.take().or(reason);
    }

    /// Returns the time at which the link ends for the reason it is suspected of.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.suspicion.as_ref().map(|(deadline, _)| *deadline)
    }

    /// Ends the link as lost, if it is suspected and its deadline has come.
    pub(super) fn overdue(&mut self, now: Instant) -> Option<LinkEnd> {
        let (_, reason) = self.suspicion.take_if(|(deadline, _)| *deadline <= now)?;
        Some(self.lost(reason.as_deref().unwrap_or(
            "its process lives, and says that a connection between the two broke; something between them, or the failure of one \
             end, may be why",
        )))
    }

    fn lost(&self, reason: &str) -> LinkEnd {
        LinkEnd::Lost(format!("{reason}; it was at {}", self.address))
    }

    pub(super) fn hostile(&self, reason: String) -> LinkEnd {
        LinkEnd::Hostile { address: self.address, reason }
    }

    /// Reads the messages of the peer. Returns the end of the link, if that has come. If the peer says that a connection
    /// broke, this side has until `deadline` to see why.
    pub(super) fn read(&mut self, deadline: Instant) -> Option<LinkEnd> {
        let address = self.address;
        loop {
            let header = match self.header.read(&self.stream) {
                Ok(None) => return None,
                Ok(Some(header)) => *header,
                Err(error) => return Some(self.lost(&how_it_broke(&error))),
            };
            self.header = Incoming::default();
            return Some(match self.inbound.open(&header).and_then(Message::try_from) {
                // The length is bounded: a peer that says more is refused.
                Ok(Message::Reason { piece, len }) if self.reason.len() < MAX_REASON => {
                    self.reason.extend_from_slice(&piece[..usize::from(len).min(PIECE)]);
                    continue;
                }
                Ok(Message::Broken) => {
                    self.suspect(None, deadline);
                    continue;
                }
                Ok(Message::Goodbye) => LinkEnd::Goodbye,
                Ok(Message::Refused) => {
                    LinkEnd::Refused { address, reason: std::mem::take(&mut self.reason) }
                }
                Ok(Message::Silence) => self.lost(
                    "the network swallows a connection that carries data, or its answers, and not others; a firewall's rules or \
                     state may be why",
                ),
                Ok(Message::Failed) => LinkEnd::Failed(std::mem::take(&mut self.reason)),
                Ok(Message::Reason { .. }) => self.hostile("it says more of a reason than fits".to_owned()),
                Err(bad) => self.hostile(bad.to_string()),
            });
        }
    }
}

fn how_it_broke(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        "its process ended (its socket closed without a goodbye)".to_owned()
    } else if is_silence(error) {
        format!("its node does not answer any more ({error})")
    } else {
        format!("its connection broke: {error}")
    }
}
