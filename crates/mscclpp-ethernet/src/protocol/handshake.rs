//! How two ends of a TCP connection prove to each other that they know the endpoint it is for.
//!
//! ```text
//! owner of the endpoint, which listened              peer, which has the endpoint's blob
//!   Challenge  magic, version, nonce             ->
//!                                                <-  Hello   magic, version, nonce, endpoint, from, link, purpose, proof
//!   Answer     magic, version, verdict, proof    ->
//! ```
//! Each proof is an HMAC-SHA256, under the endpoint's key, of everything said before and of the side that makes it: an
//! old proof, or one of the other side, is worth nothing. The peer proves itself first, so a stranger who can only
//! connect learns nothing that depends on a key. The keys of the frames that follow are derived from the same
//! transcript, so each connection and direction has its own.
//!
//! Magic and version are at the front of everything in all versions. They are compared before anything else, and a
//! mismatch names both.

use mscclpp_net::{
    key::{Key, Nonce, Transcript},
    wire::{Malformed, Reader},
};

use super::{VERSION, begin, front, seal::Seal};

const INITIATOR: &[u8] = b"mscclpp-ethernet initiator\0";
const RESPONDER: &[u8] = b"mscclpp-ethernet responder\0";
const SESSION: &[u8] = b"mscclpp-ethernet session\0";

pub(crate) const CHALLENGE: usize = 40;
pub(crate) const HELLO: usize = 113;
pub(crate) const ANSWER: usize = 41;
const PROOF: usize = Key::LEN;

/// What an endpoint is called. Not a secret.
pub(crate) type Name = [u8; 16];

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To live as long as the two ends do.
    Link,
    /// To carry operations.
    Queue,
}

/// What the side that connects asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    /// The endpoint wanted.
    pub(crate) endpoint: Name,
    /// The endpoint of the side that connects. Claimed, not proved: whoever knows the key of the endpoint wanted may claim
    /// it.
    pub(crate) from: Name,
    /// The number of the link, one for each link of `from`; queues have that of their link.
    pub(crate) link: u64,
    pub(crate) purpose: Purpose,
}

/// Why a handshake ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("it does not speak this protocol")]
    Foreign,
    #[error(
        "it speaks version {theirs} of the protocol, this side version {VERSION}; use one version of the library"
    )]
    Version { theirs: u32 },
    #[error("it does not know the endpoint: that was closed, or is elsewhere")]
    Unknown,
    #[error("its key is another than ours")]
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

/// The seals of a connection's two directions.
#[derive(Clone)]
pub(crate) struct Session {
    /// Of frames that the side which connected sends.
    pub(crate) initiator: Seal,
    /// Of frames that the side which listened sends.
    pub(crate) responder: Seal,
}

impl Session {
    /// From everything up to the initiator's proof.
    fn derive(transcript: &Transcript) -> Self {
        let bytes = transcript.prove(SESSION);
        let half = |at: usize| Seal::from_bytes(&std::array::from_fn(|i| bytes[at + i]));
        Self { initiator: half(0), responder: half(16) }
    }
}

impl From<Malformed> for Refusal {
    fn from(_: Malformed) -> Self {
        Self::Foreign
    }
}

/// The side that connected, once it has answered the challenge.
pub(crate) struct Initiator {
    transcript: Transcript,
}

impl Initiator {
    /// Answers the challenge; the bytes are to be sent. A nonce must never be used twice.
    pub(crate) fn answer(
        key: &Key,
        request: &Request,
        nonce: Nonce,
        challenge: &[u8; CHALLENGE],
    ) -> Result<(Self, Vec<u8>), Refusal> {
        front(&mut Reader::new(challenge))?;
        let mut hello = begin();
        hello.extend(nonce);
        hello.extend(request.endpoint);
        hello.extend(request.from);
        hello.extend(request.link.to_le_bytes());
        hello.push(match request.purpose {
            Purpose::Link => 1,
            Purpose::Queue => 2,
        });
        let mut transcript = Transcript::new(key.clone());
        let proof = transcript.add(challenge).add(&hello).prove(INITIATOR);
        transcript.add(&proof);
        hello.extend(proof);
        Ok((Self { transcript }, hello))
    }

    /// Takes the answer to the hello.
    pub(crate) fn conclude(mut self, answer: &[u8; ANSWER]) -> Result<Session, Refusal> {
        let mut reader = Reader::new(answer);
        front(&mut reader)?;
        let verdict = reader.u8()?;
        // Without a proof it is only a hint for the error message.
        match verdict {
            3 => return Err(Refusal::Unknown),
            4 => return Err(Refusal::Key),
            0 | 5 | 6 => {}
            _ => return Err(Refusal::Foreign),
        }
        let session = Session::derive(&self.transcript);
        let (said, proof) = answer.split_at(ANSWER - PROOF);
        if !self.transcript.add(said).verify(RESPONDER, proof) {
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
pub(crate) struct Responder {
    challenge: [u8; CHALLENGE],
}

impl Responder {
    /// Begins; the challenge is to be sent. A nonce must never be used twice.
    pub(crate) fn new(nonce: Nonce) -> Self {
        let mut challenge = [0; CHALLENGE];
        challenge[..8].copy_from_slice(&begin());
        challenge[8..].copy_from_slice(&nonce);
        Self { challenge }
    }

    pub(crate) fn challenge(&self) -> &[u8; CHALLENGE] {
        &self.challenge
    }

    /// Whether the bytes so far can still become a hello. Saves waiting for the rest of what another version sends.
    pub(crate) fn check_front(said: &[u8]) -> Result<(), Refusal> {
        if said.len() < 8 { Ok(()) } else { front(&mut Reader::new(said)) }
    }

    /// Takes the hello. `key_of` gives the key of an endpoint; `admit` decides about a peer that has proved itself, and
    /// refuses with [`Refusal::NoLink`] or [`Refusal::Full`].
    ///
    /// Either way the bytes are to be sent.
    pub(crate) fn verify(
        &self,
        hello: &[u8; HELLO],
        key_of: impl FnOnce(&Name) -> Option<Key>,
        admit: impl FnOnce(&Request) -> Result<(), Refusal>,
    ) -> (Vec<u8>, Result<(Request, Session), Refusal>) {
        let refuse = |refusal: Refusal| {
            let mut answer = begin();
            answer.push(refusal.code());
            answer.extend([0; PROOF]);
            (answer, Err(refusal))
        };
        let request = match parse(hello) {
            Ok(request) => request,
            Err(refusal) => return refuse(refusal),
        };
        let Some(key) = key_of(&request.endpoint) else { return refuse(Refusal::Unknown) };
        let (said, proof) = hello.split_at(HELLO - PROOF);
        let mut transcript = Transcript::new(key);
        if !transcript.add(&self.challenge).add(said).verify(INITIATOR, proof) {
            return refuse(Refusal::Key);
        }
        let session = Session::derive(transcript.add(proof));
        let admitted = admit(&request);
        let mut answer = begin();
        answer.push(admitted.map_or_else(Refusal::code, |()| 0));
        answer.extend(transcript.add(&answer).prove(RESPONDER));
        (answer, admitted.map(|()| (request, session)))
    }
}

fn parse(hello: &[u8; HELLO]) -> Result<Request, Refusal> {
    let mut reader = Reader::new(hello);
    front(&mut reader)?;
    let _: Nonce = reader.array()?;
    let (endpoint, from, link) = (reader.array()?, reader.array()?, reader.u64()?);
    let purpose = match reader.u8()? {
        1 => Purpose::Link,
        2 => Purpose::Queue,
        _ => return Err(Refusal::Foreign),
    };
    Ok(Request { endpoint, from, link, purpose })
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
