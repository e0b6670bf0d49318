//! Links: silent connections whose ends tell that a peer is gone, closed its endpoint, or refuses what was sent.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    sync::Arc,
    time::{Duration, Instant},
};

use mscclpp_net::socket::{Incoming, is_silence};

use crate::protocol::{
    frame::{Fault, Frame, HEADER, Inbound, Outbound},
    handshake::{Request, Session},
};

use super::link_state::{LinkEnd, LinkState};

/// How long a link may take to report by itself why its connections broke.
const GRACE: Duration = Duration::from_secs(1);

/// A link from a peer's endpoint to one of ours. This side alone speaks on it.
pub(super) struct InboundLink {
    stream: TcpStream,
    pub(super) request: Request,
    outbound: Outbound,
}

impl InboundLink {
    pub(super) fn new(stream: TcpStream, request: Request, session: Session) -> Self {
        Self { stream, request, outbound: Outbound::new(session.responder) }
    }

    pub(super) fn say_goodbye(&self) {
        self.send(Frame::Goodbye);
    }

    pub(super) fn refuse(&self, fault: Fault) {
        self.send(Frame::Fault(fault));
    }

    pub(super) fn report_silence(&self) {
        self.send(Frame::Silence);
    }

    fn send(&self, frame: Frame) {
        // A link carries so little that it always fits. If the connection has failed, the peer sees that.
        let _ = (&self.stream).write(&self.outbound.seal(frame));
    }

    /// How the link has ended, if it has.
    pub(super) fn end(&self) -> Option<InboundEnd> {
        match (&self.stream).read(&mut [0]) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                None
            }
            Err(error) if is_silence(&error) => Some(InboundEnd::Silence),
            _ => Some(InboundEnd::Ended),
        }
    }
}

/// How a link from a peer ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InboundEnd {
    /// The peer, or its system, ended it.
    Ended,
    /// Nothing comes from the peer's host any more.
    Silence,
}

/// A link from an endpoint of ours to a peer's. The peer alone speaks on it: one frame, before it ends.
pub(super) struct OutboundLink {
    stream: TcpStream,
    pub(super) state: Arc<LinkState>,
    inbound: Inbound,
    frame: Incoming<HEADER>,
    suspicion: Option<(Instant, String)>,
}

impl OutboundLink {
    pub(super) fn new(stream: TcpStream, inbound: Inbound, state: Arc<LinkState>) -> Self {
        Self { stream, state, inbound, frame: Incoming::default(), suspicion: None }
    }

    /// Something is wrong. The link has [`GRACE`] to report what; after that this reason counts, or an earlier one.
    pub(super) fn suspect(&mut self, reason: String, now: Instant) {
        self.suspicion.get_or_insert((now + GRACE, reason));
    }

    /// When the link ends for the reason it is suspected of.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.suspicion.as_ref().map(|(deadline, _)| *deadline)
    }

    /// The end, if the time of grace is over.
    pub(super) fn overdue(&mut self, now: Instant) -> Option<LinkEnd> {
        let (_, reason) = self.suspicion.take_if(|(deadline, _)| *deadline <= now)?;
        Some(LinkEnd::Lost(reason))
    }

    /// Reads what the peer sent; gives the end of the link, if that has come.
    pub(super) fn read(&mut self) -> Option<LinkEnd> {
        let lost = |reason: String| Some(LinkEnd::Lost(reason));
        let header = match self.frame.read(&self.stream) {
            Ok(None) => return None,
            Ok(Some(header)) => header,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return lost("its process ended (its socket closed without a goodbye)".to_owned());
            }
            Err(error) if is_silence(&error) => {
                return lost(format!("its host does not answer any more ({error})"));
            }
            Err(error) => return lost(format!("its connection broke: {error}")),
        };
        match self.inbound.open(header) {
            Ok(Frame::Goodbye) => Some(LinkEnd::Goodbye),
            Ok(Frame::Fault(fault)) => Some(LinkEnd::Refused(fault.to_string())),
            Ok(Frame::Silence) => lost(
                "the network swallows a connection that carries data, or its answers, and not others; a firewall's \
                 rules or state may be why"
                    .to_owned(),
            ),
            Ok(_) => Some(LinkEnd::Hostile("it said something that does not belong on a link".to_owned())),
            Err(fault) => Some(LinkEnd::Hostile(fault.to_string())),
        }
    }
}
