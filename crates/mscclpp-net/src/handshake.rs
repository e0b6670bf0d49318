//! How two ends of a connection prove to each other that they have the same key. Bytes go in and come out; sockets and
//! clocks are elsewhere.
//!
//! ```text
//! responder, which was connected to            initiator
//!   Challenge  nonce                       ->
//!                                          <-  Hello  HMAC(key, "initiator", all), who, whom, nonce
//!   Accept / Reject  HMAC(key, "responder", all), answer  ->
//! ```
//! What stands behind the proofs is up to the protocol that uses it, here and in the other [frames](crate::frame).
//!
//! - The responder speaks first, so that an initiator says who it is and proves it in the first thing it sends. From
//!   then on the end of its connection is that of a known peer.
//! - The challenge is random and nothing else, and the initiator proves itself first: a stranger who can only connect
//!   learns nothing that depends on the key.
//! - Each proof covers both nonces, everything said before, the side that makes it and the name of the protocol: an old
//!   proof, one of the other side or of another protocol is worth nothing. Proofs are compared in constant time.
//! - Only after its proof is it looked at whether versions and all else fit. A reason for not letting a member in is
//!   proved like the opposite, so a stranger on our port cannot make anybody give up.
//! - A responder that has no descriptor left sends a `Full` in place of the challenge. Anybody could: it means that there is
//!   no connection now.
//! - An initiator without a proof, or with another key, gets a `Refuse`, which cannot be proved to it. To who has a
//!   key, a `Refuse` and a wrong proof mean only that the answer is not from a holder of this key.
//!
//! It authenticates the connection, not the bytes that follow: who can change packets between two hosts is not kept out.
//! A protocol that seals what follows has a key for each direction from the same transcript ([`Session`]).

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::{
    frame::{self, encode},
    key::{Key, Nonce},
    wire::{Malformed, Reader, Wire},
};

/// A side's proof that it has the key.
type Proof = [u8; 32];

/// What a frame of the handshake is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A nonce to answer.
    Challenge = 1,
    /// My proof, who I am, whom I want, and my nonce.
    Hello = 2,
    /// My proof, and you are in.
    Accept = 3,
    /// My proof, and why you are not in.
    Reject = 4,
    /// You do not belong here.
    Refuse = 5,
    /// In place of a challenge: there is no room for another connection, and of how many descriptors.
    Full = 6,
}

impl TryFrom<u8> for Kind {
    type Error = ();

    fn try_from(byte: u8) -> Result<Self, ()> {
        let all = [Self::Challenge, Self::Hello, Self::Accept, Self::Reject, Self::Refuse, Self::Full];
        all.into_iter().find(|kind| *kind as u8 == byte).ok_or(())
    }
}

/// A frame of the handshake.
pub type Frame = frame::Frame<Kind>;

/// Why a handshake ended without a proof of the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// What it said is no part of a handshake.
    #[error("it broke the protocol: {0}")]
    Malformed(#[from] Malformed),
    /// Its proof is wrong.
    #[error("its key is not ours")]
    Key,
    /// It says that we do not belong there, for a reason with this number.
    #[error("it refuses us, for reason {0}")]
    Refused(u8),
    /// It says that it has no room, with so many descriptors.
    #[error("it accepts no more connections")]
    Full(u32),
}

const OUT_OF_PLACE: Failure = Failure::Malformed(Malformed("a frame of the handshake is out of place"));

/// The keys of a connection's two directions.
#[derive(Clone, PartialEq, Eq)]
pub struct Session {
    /// For what the side says which connected.
    pub initiator: [u8; 16],
    /// For what the side says which listened.
    pub responder: [u8; 16],
}

/// What has been said, and the key and the protocol by which it is proved.
struct Exchange {
    protocol: &'static str,
    key: Key,
    said: Vec<u8>,
}

impl Exchange {
    fn new(protocol: &'static str, key: &Key, challenge: &[u8], hello: &[u8]) -> Self {
        Self { protocol, key: key.clone(), said: [challenge, hello].concat() }
    }

    /// With the answer, too.
    fn answered(mut self, kind: Kind, answer: &[u8]) -> Self {
        self.said.push(kind as u8);
        self.said.extend_from_slice(answer);
        self
    }

    /// The HMAC-SHA256 of everything so far, for one side. Only a holder of the key can make it. The label in front keeps what
    /// one side proves apart from all else.
    fn mac(&self, side: &str) -> Hmac<Sha256> {
        // HMAC fills a key up to the hash's block with zeros; done here, no length can be wrong.
        let mut block = [0; 64];
        block[..32].copy_from_slice(&self.key.to_bytes());
        let label = format!("{} {side}\0", self.protocol);
        Hmac::<Sha256>::new(&block.into()).chain_update(label).chain_update(&self.said)
    }

    fn prove(&self, side: &str) -> Proof {
        self.mac(side).finalize().into_bytes().into()
    }

    /// Takes the same time whether the proof is right or wrong.
    fn verify(&self, side: &str, proof: &Proof) -> Result<(), Failure> {
        self.mac(side).verify_slice(proof).map_err(|_| Failure::Key)
    }

    fn session(&self) -> Session {
        let bytes = self.prove("session");
        let half = |at: usize| std::array::from_fn(|i| bytes[at + i]);
        Session { initiator: half(0), responder: half(16) }
    }
}

/// The end that opened the connection, once it has answered the challenge.
pub struct Initiator(Exchange);

/// How a holder of the key answers to an initiator.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// Whether it lets the initiator in.
    pub accepted: bool,
    /// What it said with that.
    pub said: &'a [u8],
}

impl Initiator {
    /// Answers the first frame of the other end with this hello; the bytes are to be sent. There must be a nonce in a
    /// hello, which is never used twice.
    ///
    /// # Errors
    /// If that frame is no challenge.
    pub fn answer(
        protocol: &'static str,
        key: &Key,
        hello: &[u8],
        first: &Frame,
    ) -> Result<(Self, Vec<u8>), Failure> {
        match first.kind {
            Kind::Challenge => Nonce::parse(&first.payload)?,
            Kind::Full => return Err(Failure::Full(Reader::new(&first.payload).take()?)),
            _ => return Err(OUT_OF_PLACE),
        };
        let exchange = Exchange::new(protocol, key, &first.payload, hello);
        let bytes = encode(Kind::Hello as u8, &[&exchange.prove("initiator")[..], hello].concat());
        Ok((Self(exchange), bytes))
    }

    /// The keys for what follows, if the other end proves itself.
    #[must_use]
    pub fn session(&self) -> Session {
        self.0.session()
    }

    /// Takes the answer to the hello.
    ///
    /// # Errors
    /// If it is not proved.
    pub fn conclude(self, frame: &Frame) -> Result<Answer<'_>, Failure> {
        match frame.kind {
            Kind::Refuse => Err(Failure::Refused(u8::parse(&frame.payload)?)),
            Kind::Accept | Kind::Reject => {
                let Claim { proof, said } = Claim::split(&frame.payload)?;
                self.0.answered(frame.kind, said).verify("responder", proof)?;
                Ok(Answer { accepted: frame.kind == Kind::Accept, said })
            }
            _ => Err(OUT_OF_PLACE),
        }
    }
}

/// A proof that is still to be verified, and what it is of.
pub struct Claim<'a> {
    proof: &'a Proof,
    /// What its sender says. Nothing of it is certain.
    pub said: &'a [u8],
}

impl<'a> Claim<'a> {
    /// Of the first frame of an initiator.
    ///
    /// # Errors
    /// If it is no hello.
    pub fn of(first: &'a Frame) -> Result<Self, Failure> {
        if first.kind == Kind::Hello { Ok(Self::split(&first.payload)?) } else { Err(OUT_OF_PLACE) }
    }

    fn split(payload: &'a [u8]) -> Result<Self, Malformed> {
        let (proof, said) = payload.split_first_chunk().ok_or(Malformed("a proof is too short"))?;
        Ok(Self { proof, said })
    }
}

/// The end that listened, until the other has proved itself.
pub struct Responder {
    protocol: &'static str,
    nonce: Nonce,
}

impl Responder {
    /// Begins; the bytes are to be sent. A nonce must never be used twice.
    #[must_use]
    pub fn challenge(protocol: &'static str, nonce: Nonce) -> (Self, Vec<u8>) {
        (Self { protocol, nonce }, encode(Kind::Challenge as u8, &nonce))
    }

    /// What is sent in place of a challenge by who has this many descriptors open, and may have no more.
    #[must_use]
    pub fn full(descriptors: u32) -> Vec<u8> {
        encode(Kind::Full as u8, &descriptors.to_le_bytes())
    }

    /// Whether an initiator has this key.
    ///
    /// # Errors
    /// [`Failure::Key`] if not. A [`refusal`](Self::refusal) may be sent before the connection is closed.
    pub fn verify(&self, key: &Key, hello: &Claim<'_>) -> Result<Verified, Failure> {
        let exchange = Exchange::new(self.protocol, key, &self.nonce, hello.said);
        exchange.verify("initiator", hello.proof)?;
        Ok(Verified(exchange))
    }

    /// The answer to a stranger: that it does not belong here, and why, as a number.
    #[must_use]
    pub fn refusal(reason: u8) -> Vec<u8> {
        encode(Kind::Refuse as u8, &[reason])
    }
}

/// The end that listened, once the other has proved itself and is to be answered.
pub struct Verified(Exchange);

impl Verified {
    /// The keys for what follows.
    #[must_use]
    pub fn session(&self) -> Session {
        self.0.session()
    }

    /// Lets it in; the bytes are to be sent.
    #[must_use]
    pub fn accept(self, answer: &[u8]) -> Vec<u8> {
        self.answer(Kind::Accept, answer)
    }

    /// Tells it why it is not let in; the bytes are to be sent.
    #[must_use]
    pub fn reject(self, reason: &[u8]) -> Vec<u8> {
        self.answer(Kind::Reject, reason)
    }

    fn answer(self, kind: Kind, answer: &[u8]) -> Vec<u8> {
        let proof = self.0.answered(kind, answer).prove("responder");
        encode(kind as u8, &[&proof[..], answer].concat())
    }
}
