//! Links: silent connections whose ends tell that a peer is gone, closed its endpoint, or refuses what was sent.

use std::{
    net::TcpStream,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    protocol::{
        frame::{Fault, Frame, HEADER, Inbound, Outbound},
        handshake::{Session, Wish},
    },
    socket::{self, Manner, Piece},
};

use super::link_state::{LinkEnd, LinkState};

/// How long a link may take to say by itself why its connections broke.
const GRACE: Duration = Duration::from_secs(1);

/// A link from a peer's endpoint to one of ours.
pub(super) struct Guest {
    pub(super) stream: TcpStream,
    pub(super) wish: Wish,
    outbound: Outbound,
}

impl Guest {
    pub(super) fn new(stream: TcpStream, wish: Wish, session: Session) -> Self {
        Self { stream, wish, outbound: Outbound::new(session.responder) }
    }

    pub(super) fn say_goodbye(&self) {
        self.say(Frame::Goodbye);
    }

    pub(super) fn refuse(&self, fault: Fault) {
        self.say(Frame::Fault(fault));
    }

    pub(super) fn tell_of_silence(&self) {
        self.say(Frame::Silence);
    }

    fn say(&self, frame: Frame) {
        let header = self.outbound.seal(frame);
        // SAFETY: an array of this thread's. A link carries so little that it always fits; failing is the peer's loss, which
        // sees the connection close.
        let _ = unsafe { socket::send(&self.stream, &[Piece::of(&header)], Manner::AtOnce) };
    }

    /// How the link has ended, if it has. The peer has nothing to say on it.
    pub(super) fn end(&self) -> Option<GuestEnd> {
        let mut byte = [0];
        // SAFETY: an array of this thread's.
        match unsafe { socket::receive(&self.stream, &[Piece::of_mut(&mut byte)], false) } {
            Err(error) if socket::is_not_now(&error) => None,
            Err(error) if socket::is_silence(&error) => Some(GuestEnd::Silence),
            _ => Some(GuestEnd::Ended),
        }
    }
}

/// How a guest's link ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum GuestEnd {
    /// The peer, or its system, ended it.
    Ended,
    /// Nothing comes from the peer's host any more.
    Silence,
}

/// A link from an endpoint of ours to a peer's.
pub(super) struct Watched {
    pub(super) stream: TcpStream,
    pub(super) link: Arc<LinkState>,
    inbound: Inbound,
    said: [u8; HEADER],
    heard: usize,
    suspicion: Option<(Instant, String)>,
}

impl Watched {
    pub(super) fn new(stream: TcpStream, inbound: Inbound, link: Arc<LinkState>) -> Self {
        Self { stream, link, inbound, said: [0; HEADER], heard: 0, suspicion: None }
    }

    /// Something is wrong; the link has a moment to say what. The first reason counts.
    pub(super) fn suspect(&mut self, reason: String, now: Instant) {
        self.suspicion.get_or_insert((now + GRACE, reason));
    }

    pub(super) fn is_suspected(&self) -> bool {
        self.suspicion.is_some()
    }

    /// The end, if the moment is over.
    pub(super) fn overdue(&mut self, now: Instant) -> Option<LinkEnd> {
        let (_, reason) = self.suspicion.take_if(|(deadline, _)| *deadline <= now)?;
        Some(LinkEnd::Lost(reason))
    }

    /// Hears what the peer says: its end, if it has come.
    pub(super) fn hear(&mut self) -> Option<LinkEnd> {
        let lost = |reason: String| Some(LinkEnd::Lost(reason));
        while self.heard < HEADER {
            let room = Piece::of_mut(&mut self.said[self.heard..]);
            // SAFETY: the rest of an array of this thread's.
            match unsafe { socket::receive(&self.stream, &[room], false) } {
                Ok(0) => return lost("its process ended (its socket closed without a goodbye)".to_owned()),
                Ok(count) => self.heard += count,
                Err(error) if socket::is_not_now(&error) => return None,
                Err(error) if socket::is_silence(&error) => {
                    return lost(format!("its host does not answer any more ({error})"));
                }
                Err(error) => return lost(format!("its connection broke: {error}")),
            }
        }
        match self.inbound.open(&self.said) {
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
