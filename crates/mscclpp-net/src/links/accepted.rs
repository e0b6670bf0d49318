//! A connection that was accepted, whose handshake is not complete yet.

use std::{
    io::Write,
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use crate::{
    key::{Key, Nonce},
    socket::Incoming,
};

use super::{
    Name, Protocol,
    handshake::{HELLO, Refusal, Request, Responder, Session},
};

/// How long a handshake may take.
const LIMIT: Duration = Duration::from_secs(5);

pub(super) struct Accepted {
    pub(super) stream: TcpStream,
    pub(super) address: SocketAddr,
    /// When the handshake must be complete.
    pub(super) deadline: Instant,
    responder: Responder,
    hello: Incoming<HELLO>,
}

/// How far the handshake has come.
pub(super) enum Progress {
    /// More must arrive.
    Undecided,
    /// The peer proved itself and was admitted.
    Admitted { request: Request, session: Session },
    /// The connection ended, or was refused.
    Over(Option<Refusal>),
}

impl Accepted {
    /// Challenges the process that connected; none if the connection has ended already.
    pub(super) fn challenge(
        protocol: Protocol,
        stream: TcpStream,
        address: SocketAddr,
        nonce: Nonce,
        now: Instant,
    ) -> Option<Self> {
        let (responder, hello) = (Responder::new(protocol, nonce), Incoming::default());
        let accepted = Self { stream, address, deadline: now + LIMIT, responder, hello };
        accepted.send(accepted.responder.challenge()).then_some(accepted)
    }

    /// Sends a few bytes, which always fit the buffer of a new socket.
    fn send(&self, bytes: &[u8]) -> bool {
        matches!((&self.stream).write(bytes), Ok(count) if count == bytes.len())
    }

    /// Reads what has arrived, and answers once the hello is complete.
    pub(super) fn read(
        &mut self,
        key_of: impl FnOnce(&Name) -> Option<Key>,
        admit: impl FnOnce(&Request) -> Result<(), Refusal>,
    ) -> Progress {
        let Ok(hello) = self.hello.read(&self.stream).map(Option::<&_>::copied) else {
            return Progress::Over(None);
        };
        if let Err(refusal) = self.responder.check_front(self.hello.so_far()) {
            return Progress::Over(Some(refusal));
        }
        let Some(hello) = hello else { return Progress::Undecided };
        let (answer, verdict) = self.responder.verify(&hello, key_of, admit);
        match (verdict, self.send(&answer)) {
            (Ok((request, session)), true) => Progress::Admitted { request, session },
            (Ok(_), false) => Progress::Over(None),
            (Err(refusal), _) => Progress::Over(Some(refusal)),
        }
    }
}
