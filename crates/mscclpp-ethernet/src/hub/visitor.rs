//! Somebody who connected to us and has not said yet what it wants.

use std::{
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use crate::{
    protocol::{
        handshake::{HELLO, Refusal, Responder, Session, Wish},
        key::Key,
    },
    socket::{self, Manner, Piece},
};

/// How long a visitor may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) struct Visitor {
    pub(super) stream: TcpStream,
    pub(super) address: SocketAddr,
    responder: Responder,
    said: [u8; HELLO],
    heard: usize,
    since: Instant,
}

/// What became of a visitor.
pub(super) enum Outcome {
    /// It has more to say.
    Undecided,
    /// It proved itself and was let in.
    Admitted { wish: Wish, session: Session },
    /// It went, or was sent away.
    Gone(Option<Refusal>),
}

impl Visitor {
    /// Challenges somebody; none if it has gone already.
    pub(super) fn welcome(
        stream: TcpStream,
        address: SocketAddr,
        nonce: [u8; 32],
        now: Instant,
    ) -> Option<Self> {
        stream.set_nonblocking(true).ok()?;
        let visitor = Self {
            stream,
            address,
            responder: Responder::new(nonce),
            said: [0; HELLO],
            heard: 0,
            since: now,
        };
        visitor.say(visitor.responder.challenge()).then_some(visitor)
    }

    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        now.duration_since(self.since) > PATIENCE
    }

    /// A few bytes always fit the buffer of a new socket.
    fn say(&self, bytes: &[u8]) -> bool {
        // SAFETY: a slice of this thread's.
        matches!(unsafe { socket::send(&self.stream, &[Piece::of(bytes)], Manner::AtOnce) }, Ok(n) if n == bytes.len())
    }

    /// Hears what it says.
    pub(super) fn hear(
        &mut self,
        key_of: impl FnOnce(&crate::protocol::handshake::Name) -> Option<Key>,
        admit: impl FnOnce(&Wish) -> Result<(), Refusal>,
    ) -> Outcome {
        while self.heard < HELLO {
            let room = Piece::of_mut(&mut self.said[self.heard..]);
            // SAFETY: the rest of an array of this thread's.
            match unsafe { socket::receive(&self.stream, &[room], false) } {
                Ok(0) => return Outcome::Gone(None),
                Ok(count) => self.heard += count,
                Err(error) if socket::is_not_now(&error) => break,
                Err(_) => return Outcome::Gone(None),
            }
        }
        if let Err(refusal) = Responder::glance(&self.said[..self.heard]) {
            return Outcome::Gone(Some(refusal));
        }
        if self.heard < HELLO {
            return Outcome::Undecided;
        }
        let (answer, verdict) = self.responder.verify(&self.said, key_of, admit);
        match (verdict, self.say(&answer)) {
            (Ok((wish, session)), true) => Outcome::Admitted { wish, session },
            (Ok(_), false) => Outcome::Gone(None),
            (Err(refusal), _) => Outcome::Gone(Some(refusal)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_who_says_nothing_is_sent_away_in_the_end() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let silent = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, address) = listener.accept().unwrap();
        let now = Instant::now();
        let mut visitor = Visitor::welcome(stream, address, [1; 32], now).unwrap();
        assert!(matches!(visitor.hear(|_| None, |_| Ok(())), Outcome::Undecided));
        assert!(!visitor.is_overdue(now + PATIENCE));
        assert!(visitor.is_overdue(now + PATIENCE + Duration::from_millis(1)));
        drop(silent);
    }
}
