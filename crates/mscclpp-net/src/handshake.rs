//! The handshake by which two ends of a connection prove to each other that they have the same key. This module turns
//! bytes into bytes; sockets and clocks are elsewhere.
//!
//! ```text
//! responder, which was connected to            initiator
//!   Challenge  nonce                       ->
//!                                          <-  Hello  HMAC(key, "initiator", all), who, whom, nonce
//!   Accept / Reject  HMAC(key, "responder", all), answer  ->
//! ```
//! The content of the proved parts (`who`, `whom`, `answer`) is up to the protocol that uses the handshake. All of them
//! travel in [frames](crate::frame).
//!
//! - The responder speaks first, so that an initiator says who it is and proves it in the first frame that it sends.
//!   From then on its connection is known to come from a peer.
//! - The challenge is random and nothing else, and the initiator proves itself first: a stranger who can only connect
//!   learns nothing that depends on the key.
//! - Each proof covers both nonces, everything said before, the side that makes it and the name of the protocol: an
//!   old proof, one of the other side or one of another protocol is worth nothing. Proofs are compared in constant
//!   time.
//! - The responder checks versions and everything else only after the initiator's proof. A rejection is proved like
//!   an acceptance, so a stranger on our port cannot make anybody give up.
//! - A responder that has no descriptor left sends a `Full` in place of the challenge. Anybody could send one, so it
//!   means only that no connection can be had now.
//! - An initiator without a proof, or with another key, gets a `Refuse`, which cannot be proved to it. To a holder of
//!   the key, a `Refuse` and a wrong proof mean only that the answer does not come from a holder of this key.
//!
//! The handshake authenticates the connection, not the bytes that follow: it does not keep out somebody who can
//! change packets between two nodes. A protocol that seals its later messages gets a key for each direction from the
//! same transcript ([`Session`]).

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::{
    frame::{self, encode},
    key::{Key, Nonce},
    wire::{Malformed, Reader, Wire},
};

/// A side's proof that it has the key.
type Proof = [u8; 32];

/// The kinds of frames in a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A nonce, which the initiator must answer.
    Challenge = 1,
    /// The initiator's proof, who it is, whom it wants, and its nonce.
    Hello = 2,
    /// The responder's proof and its answer: the initiator is accepted.
    Accept = 3,
    /// The responder's proof, and why the initiator is not accepted.
    Reject = 4,
    /// An unproved refusal: the initiator does not belong here.
    Refuse = 5,
    /// A frame in place of a challenge: the responder has no room for another connection. It holds the number of
    /// descriptors.
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

/// The reason why a handshake ended without a proof of the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The other end sent something that is no part of a handshake.
    #[error("it broke the protocol: {0}")]
    Malformed(#[from] Malformed),
    /// The other end's proof is wrong.
    #[error("its key is not ours")]
    Key,
    /// The other end says that this side does not belong there, for a reason with this number.
    #[error("it refuses us, for reason {0}")]
    Refused(u8),
    /// The other end says that it has no room for a connection beside this many descriptors.
    #[error("it accepts no more connections")]
    Full(u32),
}

const OUT_OF_PLACE: Failure = Failure::Malformed(Malformed("a frame of the handshake is out of place"));

/// The keys of a connection's two directions.
#[derive(Clone, PartialEq, Eq)]
pub struct Session {
    /// The key for what the side that connected sends.
    pub initiator: [u8; 16],
    /// The key for what the side that listened sends.
    pub responder: [u8; 16],
}

/// Everything that was said so far, and the key and the protocol that prove it.
struct Exchange {
    protocol: &'static str,
    key: Key,
    said: Vec<u8>,
}

impl Exchange {
    fn new(protocol: &'static str, key: &Key, challenge: &[u8], hello: &[u8]) -> Self {
        Self { protocol, key: key.clone(), said: [challenge, hello].concat() }
    }

    /// Adds the answer to what was said.
    fn answered(mut self, kind: Kind, answer: &[u8]) -> Self {
        self.said.push(kind as u8);
        self.said.extend_from_slice(answer);
        self
    }

    /// Returns the HMAC-SHA256 of everything said so far, for one side. Only a holder of the key can compute it. The
    /// label in front keeps the proofs of the two sides and of different protocols apart.
    fn mac(&self, side: &str) -> Hmac<Sha256> {
        // HMAC pads a key with zeros to the hash's block. The padding is done here, so that the key's length cannot
        // be wrong.
        let mut block = [0; 64];
        block[..32].copy_from_slice(&self.key.to_bytes());
        let label = format!("{} {side}\0", self.protocol);
        Hmac::<Sha256>::new(&block.into()).chain_update(label).chain_update(&self.said)
    }

    fn prove(&self, side: &str) -> Proof {
        self.mac(side).finalize().into_bytes().into()
    }

    /// Checks a proof in the same time whether it is right or wrong.
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

/// The answer of a holder of the key to an initiator.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// Whether the other end accepts the initiator.
    pub accepted: bool,
    /// The content of the answer.
    pub said: &'a [u8],
}

impl Initiator {
    /// Answers the first frame of the other end with this hello. Returns the bytes to send. The hello must contain a
    /// nonce that is never used twice.
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

    /// Returns the keys for later messages, which are valid once the other end has proved itself.
    #[must_use]
    pub fn session(&self) -> Session {
        self.0.session()
    }

    /// Checks the answer to the hello.
    ///
    /// # Errors
    /// If the answer is not proved.
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

/// A proof that is still to be verified, with the bytes that it proves.
pub struct Claim<'a> {
    proof: &'a Proof,
    /// The sender's statement, which is not trusted before [`Responder::verify`].
    pub said: &'a [u8],
}

impl<'a> Claim<'a> {
    /// Takes the claim from the first frame of an initiator.
    ///
    /// # Errors
    /// If the frame is no hello.
    pub fn of(first: &'a Frame) -> Result<Self, Failure> {
        if first.kind == Kind::Hello { Ok(Self::split(&first.payload)?) } else { Err(OUT_OF_PLACE) }
    }

    fn split(payload: &'a [u8]) -> Result<Self, Malformed> {
        let (proof, said) = payload.split_first_chunk().ok_or(Malformed("a proof is too short"))?;
        Ok(Self { proof, said })
    }
}

/// The end that listened, until the initiator has proved itself.
pub struct Responder {
    protocol: &'static str,
    nonce: Nonce,
}

impl Responder {
    /// Begins a handshake. Returns the bytes to send. A nonce must never be used twice.
    #[must_use]
    pub fn challenge(protocol: &'static str, nonce: Nonce) -> (Self, Vec<u8>) {
        (Self { protocol, nonce }, encode(Kind::Challenge as u8, &nonce))
    }

    /// Returns the frame that a process sends in place of a challenge when it has this many descriptors open and may
    /// have no more.
    #[must_use]
    pub fn full(descriptors: u32) -> Vec<u8> {
        encode(Kind::Full as u8, &descriptors.to_le_bytes())
    }

    /// Checks that an initiator has this key.
    ///
    /// # Errors
    /// [`Failure::Key`] if it does not. A [`refusal`](Self::refusal) may be sent before the connection is closed.
    pub fn verify(&self, key: &Key, hello: &Claim<'_>) -> Result<Verified, Failure> {
        let exchange = Exchange::new(self.protocol, key, &self.nonce, hello.said);
        exchange.verify("initiator", hello.proof)?;
        Ok(Verified(exchange))
    }

    /// Returns the answer to a stranger: it does not belong here, for the reason with this number.
    #[must_use]
    pub fn refusal(reason: u8) -> Vec<u8> {
        encode(Kind::Refuse as u8, &[reason])
    }
}

/// The end that listened, once the initiator has proved itself and is to be answered.
pub struct Verified(Exchange);

impl Verified {
    /// Returns the keys for later messages.
    #[must_use]
    pub fn session(&self) -> Session {
        self.0.session()
    }

    /// Accepts the initiator. Returns the bytes to send.
    #[must_use]
    pub fn accept(self, answer: &[u8]) -> Vec<u8> {
        self.answer(Kind::Accept, answer)
    }

    /// Rejects the initiator and says why. Returns the bytes to send.
    #[must_use]
    pub fn reject(self, reason: &[u8]) -> Vec<u8> {
        self.answer(Kind::Reject, reason)
    }

    fn answer(self, kind: Kind, answer: &[u8]) -> Vec<u8> {
        let proof = self.0.answered(kind, answer).prove("responder");
        encode(kind as u8, &[&proof[..], answer].concat())
    }
}
