//! How two ends of a TCP connection prove to each other that they know the endpoint it is for.
//!
//! ```text
//! owner of the endpoint, which listened           peer, which has the endpoint's address
//!   Challenge  magic, version, nonce             ->
//!                                                <-  Hello   magic, version, nonce, endpoint, from, link, purpose, proof
//!   Answer     magic, version, verdict, proof    ->
//! ```
//! Each proof is an HMAC-SHA256, under the endpoint's key, of everything said before and of the side that makes it. So
//! an old proof is worth nothing, and neither is a proof of the other side. The peer proves itself first, so a stranger
//! who can only connect learns nothing that depends on a key. The keys that seal what follows are derived from the same
//! transcript, so each connection and each direction has its own.
//!
//! In every version of the protocol, each message begins with magic and version. They are compared before anything
//! else, and the error for a mismatch names both versions.

use crate::{
    key::{Key, Nonce, Transcript},
    wire::{Malformed, Reader},
};

use super::{Name, Protocol, header::SealKey};

const INITIATOR: &str = "initiator";
const RESPONDER: &str = "responder";
const SESSION: &str = "session";

pub(super) const CHALLENGE: usize = 40;
pub(super) const HELLO: usize = 113;
pub(super) const ANSWER: usize = 41;
const PROOF: usize = Key::LEN;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To live as long as the two ends do.
    Link,
    /// To carry a transport's data.
    Data,
}

/// What the side that connects asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    /// The endpoint wanted.
    pub(super) endpoint: Name,
    /// The endpoint of the side that connects. Claimed, not proved: any process that knows the key of the wanted
    /// endpoint may claim it.
    pub(super) from: Name,
    /// The number of the link, one for each link of `from`. Connections that carry data have that of their link.
    pub(super) link: u64,
    pub(super) purpose: Purpose,
}

impl Request {
    /// Whether both were made for the same link.
    pub(super) fn is_of_the_link_of(&self, other: &Self) -> bool {
        (self.endpoint, self.from, self.link) == (other.endpoint, other.from, other.link)
    }

    /// Whether it asks for a way from the endpoint that `theirs` asked for to the one that this came from.
    pub(super) fn is_way_back_of(&self, theirs: &Self) -> bool {
        (self.from, self.endpoint) == (theirs.endpoint, theirs.from)
    }
}

/// Why a handshake ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("it does not speak this protocol")]
    Foreign,
    #[error(
        "it speaks version {theirs} of the protocol, this side version {ours}; use one version of the library"
    )]
    Version { theirs: u32, ours: u32 },
    #[error("it does not know the endpoint: that was closed, or is elsewhere")]
    Unknown,
    #[error("its key is not ours")]
    Key,
    #[error("it belongs to no link here; the link was closed meanwhile")]
    NoLink,
    #[error("it has as many connections as it takes")]
    Full,
}

impl Refusal {
    fn code(self) -> u8 {
        match self {
            Self::Foreign => 1,
            Self::Version { .. } => 2,
            Self::Unknown => 3,
            Self::Key => 4,
            Self::NoLink => 5,
            Self::Full => 6,
        }
    }
}

/// What seals a connection's two directions.
pub(super) struct Session {
    /// What the side which connected says.
    pub(super) initiator: SealKey,
    /// What the side which listened says.
    pub(super) responder: SealKey,
}

impl Session {
    /// From everything up to the initiator's proof.
    fn derive(protocol: &Protocol, transcript: &Transcript) -> Self {
        let bytes = transcript.prove(&protocol.label(SESSION));
        let half = |at: usize| std::array::from_fn(|i| bytes[at + i]);
        Self { initiator: half(0), responder: half(16) }
    }
}

impl From<Malformed> for Refusal {
    fn from(_: Malformed) -> Self {
        Self::Foreign
    }
}

/// The side that connected, once it has answered the challenge.
pub(super) struct Initiator {
    protocol: Protocol,
    transcript: Transcript,
}

impl Initiator {
    /// Answers the challenge; send the returned bytes. A nonce must never be used twice.
    pub(super) fn answer(
        protocol: Protocol,
        key: &Key,
        request: &Request,
        nonce: Nonce,
        challenge: &[u8; CHALLENGE],
    ) -> Result<(Self, Vec<u8>), Refusal> {
        protocol.front(&mut Reader::new(challenge))?;
        let mut hello = protocol.begin();
        hello.extend(nonce);
        hello.extend(request.endpoint);
        hello.extend(request.from);
        hello.extend(request.link.to_le_bytes());
        hello.push(match request.purpose {
            Purpose::Link => 1,
            Purpose::Data => 2,
        });
        let mut transcript = Transcript::new(key.clone());
        let proof = transcript.add(challenge).add(&hello).prove(&protocol.label(INITIATOR));
        transcript.add(&proof);
        hello.extend(proof);
        Ok((Self { protocol, transcript }, hello))
    }

    /// Takes the answer to the hello.
    pub(super) fn conclude(mut self, answer: &[u8; ANSWER]) -> Result<Session, Refusal> {
        let mut reader = Reader::new(answer);
        self.protocol.front(&mut reader)?;
        let verdict = reader.u8()?;
        // Without a proof it is only a hint for the error message.
        match verdict {
            3 => return Err(Refusal::Unknown),
            4 => return Err(Refusal::Key),
            0 | 5 | 6 => {}
            _ => return Err(Refusal::Foreign),
        }
        let session = Session::derive(&self.protocol, &self.transcript);
        let (said, proof) = answer.split_at(ANSWER - PROOF);
        if !self.transcript.add(said).verify(&self.protocol.label(RESPONDER), proof) {
            return Err(Refusal::Key);
        }
        match verdict {
            0 => Ok(session),
            6 => Err(Refusal::Full),
            _ => Err(Refusal::NoLink),
        }
    }
}

/// The side that listened.
pub(super) struct Responder {
    protocol: Protocol,
    challenge: [u8; CHALLENGE],
}

impl Responder {
    /// Begins; send the returned challenge. A nonce must never be used twice.
    pub(super) fn new(protocol: Protocol, nonce: Nonce) -> Self {
        let mut challenge = [0; CHALLENGE];
        challenge[..8].copy_from_slice(&protocol.begin());
        challenge[8..].copy_from_slice(&nonce);
        Self { protocol, challenge }
    }

    pub(super) fn challenge(&self) -> &[u8; CHALLENGE] {
        &self.challenge
    }

    /// Whether the bytes so far can still become a hello. Saves waiting for the rest of what another version sends.
    pub(super) fn check_front(&self, said: &[u8]) -> Result<(), Refusal> {
        if said.len() < 8 { Ok(()) } else { self.protocol.front(&mut Reader::new(said)) }
    }

    /// Takes the hello. `key_of` gives the key of an endpoint; `admit` decides about a peer that has proved itself.
    ///
    /// Send the returned bytes in either case.
    pub(super) fn verify(
        &self,
        hello: &[u8; HELLO],
        key_of: impl FnOnce(&Name) -> Option<Key>,
        admit: impl FnOnce(&Request) -> Result<(), Refusal>,
    ) -> (Vec<u8>, Result<(Request, Session), Refusal>) {
        let refuse = |refusal: Refusal| {
            let mut answer = self.protocol.begin();
            answer.push(refusal.code());
            answer.extend([0; PROOF]);
            (answer, Err(refusal))
        };
        let request = match parse(&self.protocol, hello) {
            Ok(request) => request,
            Err(refusal) => return refuse(refusal),
        };
        let Some(key) = key_of(&request.endpoint) else { return refuse(Refusal::Unknown) };
        let (said, proof) = hello.split_at(HELLO - PROOF);
        let mut transcript = Transcript::new(key);
        if !transcript.add(&self.challenge).add(said).verify(&self.protocol.label(INITIATOR), proof) {
            return refuse(Refusal::Key);
        }
        let session = Session::derive(&self.protocol, transcript.add(proof));
        let admitted = admit(&request);
        let mut answer = self.protocol.begin();
        answer.push(admitted.map_or_else(Refusal::code, |()| 0));
        answer.extend(transcript.add(&answer).prove(&self.protocol.label(RESPONDER)));
        (answer, admitted.map(|()| (request, session)))
    }
}

fn parse(protocol: &Protocol, hello: &[u8; HELLO]) -> Result<Request, Refusal> {
    let mut reader = Reader::new(hello);
    protocol.front(&mut reader)?;
    let _: Nonce = reader.array()?;
    let (endpoint, from, link) = (reader.array()?, reader.array()?, reader.u64()?);
    let purpose = match reader.u8()? {
        1 => Purpose::Link,
        2 => Purpose::Data,
        _ => return Err(Refusal::Foreign),
    };
    Ok(Request { endpoint, from, link, purpose })
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
