//! A connection that was accepted, whose handshake is not complete yet.

use std::{
    io::{ErrorKind, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use crate::{
    frame::FrameReader,
    handshake::{Responder, Session},
    key::{Key, Nonce},
};

use super::{
    Name, Protocol,
    handshake::{self, Refusal, Request},
};

/// How long a handshake may take.
const LIMIT: Duration = Duration::from_secs(5);

pub(super) struct Accepted {
    pub(super) stream: TcpStream,
    pub(super) address: SocketAddr,
    /// The time at which the handshake must be complete.
    pub(super) deadline: Instant,
    protocol: Protocol,
    responder: Responder,
    reader: FrameReader,
}

impl Accepted {
    /// Sends a challenge to the process that connected. Returns `None` if the connection has ended already.
    pub(super) fn challenge(
        protocol: Protocol,
        stream: TcpStream,
        address: SocketAddr,
        nonce: Nonce,
        now: Instant,
    ) -> Option<Self> {
        let (responder, challenge) = Responder::challenge(protocol.name, nonce);
        let reader = handshake::reader();
        let accepted = Self { stream, address, deadline: now + LIMIT, protocol, responder, reader };
        accepted.send(&challenge).then_some(accepted)
    }

    /// Sends a few bytes, which always fit the buffer of a new socket. Returns whether all were sent.
    fn send(&self, bytes: &[u8]) -> bool {
        matches!((&self.stream).write(bytes), Ok(count) if count == bytes.len())
    }

    /// Reads the bytes that have arrived, and answers once the hello is complete. Fails if the connection ended or
    /// was refused.
    pub(super) fn read(
        &mut self,
        key_of: impl FnOnce(&Name) -> Option<Key>,
        admit: impl FnOnce(&Request) -> Result<(), Refusal>,
    ) -> Result<Option<(Request, Session)>, Option<Refusal>> {
        let hello = self
            .reader
            .read(&self.stream)
            .map_err(|error| (error.kind() == ErrorKind::InvalidData).then_some(Refusal::Foreign))?;
        let Some(hello) = hello else { return Ok(None) };
        let (answer, verdict) = handshake::answer(&self.protocol, &self.responder, &hello, key_of, admit);
        let sent = self.send(&answer);
        let admitted = verdict.map_err(Some)?;
        if sent { Ok(Some(admitted)) } else { Err(None) }
    }
}
