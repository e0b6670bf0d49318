//! How two ends of a connection prove to each other that they belong to one job.
//!
//! ```text
//! initiator                                  responder
//!   Hello   who, whom, which job, nonce  ->
//!                                        <-  Challenge  nonce
//!   Proof   HMAC(key, "initiator", all)  ->             verified: who is this, then?
//!                                        <-  Accept / Reject  with HMAC(key, "responder", all)
//! ```
//! - The initiator proves itself first, so that a stranger who can only connect learns nothing that depends on the key.
//! - Each proof covers both nonces, everything said before and the side that makes it: an old proof, or one of the
//!   other side, is worth nothing. Proofs are compared in constant time.
//! - Only then are version, job, number of ranks and rank compared. A reason for not letting a member in is proved
//!   like the opposite, so a stranger on our port cannot make a rank give up.
//!
//! It authenticates the connection, not the bytes that follow: who can change packets between two hosts is not kept out.
//! Without a key both sides use one that everybody knows; the exchange then only shows that the other end is alive and
//! speaks this protocol, which recorded or random bytes do not.

use crate::protocol::frame::{self, Frame, Kind};
use crate::protocol::key::Key;
use crate::protocol::wire::{MAX_TEXT, Malformed, Reader, put_text};

/// The version of all that follows the handshake.
pub(crate) const PROTOCOL_VERSION: u32 = 1;

pub(crate) type JobId = [u8; 16];
pub(crate) type Nonce = [u8; 32];

const INITIATOR: &[u8] = b"mscclpp-bootstrap initiator\0";
const RESPONDER: &[u8] = b"mscclpp-bootstrap responder\0";

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To join the job at rank 0.
    Join,
    /// To be the edge between a rank and its parent.
    Tree,
    /// To exchange messages with a peer.
    Peer,
}

/// What the initiator says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) version: u32,
    pub(crate) secret: bool,
    pub(crate) purpose: Purpose,
    /// Zero when not known yet.
    pub(crate) job: JobId,
    pub(crate) n_ranks: u32,
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) nonce: Nonce,
}

impl Hello {
    fn payload(&self) -> Vec<u8> {
        let mut out = self.version.to_le_bytes().to_vec();
        out.push(u8::from(self.secret));
        out.push(match self.purpose {
            Purpose::Join => 1,
            Purpose::Tree => 2,
            Purpose::Peer => 3,
        });
        out.extend(self.job);
        out.extend(self.n_ranks.to_le_bytes());
        out.extend(self.from.to_le_bytes());
        out.extend(self.to.to_le_bytes());
        out.extend(self.nonce);
        out
    }

    pub(crate) fn parse(payload: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(payload);
        let hello = Self {
            version: reader.u32()?,
            secret: reader.flag()?,
            purpose: match reader.u8()? {
                1 => Purpose::Join,
                2 => Purpose::Tree,
                3 => Purpose::Peer,
                _ => return Err(Malformed("a connection is for no known purpose")),
            },
            job: reader.array()?,
            n_ranks: reader.u32()?,
            from: reader.u32()?,
            to: reader.u32()?,
            nonce: reader.array()?,
        };
        reader.end()?;
        Ok(hello)
    }
}

/// Why a member that proved itself is not let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// The two sides differ in something; what the responder has, with its address as it knows it.
    Mismatch { what: String, theirs: String },
    /// The rank came already, from this address.
    Duplicate { first: String },
    /// All ranks are there.
    Complete { n_ranks: u32 },
    /// The one asked for is not here; somebody else listens.
    WrongPlace { here: u32 },
}

impl Rejection {
    fn payload(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Mismatch { what, theirs } => {
                out.push(1);
                put_text(&mut out, what);
                put_text(&mut out, theirs);
            }
            Self::Duplicate { first } => {
                out.push(2);
                put_text(&mut out, first);
            }
            Self::Complete { n_ranks } => {
                out.push(3);
                out.extend(n_ranks.to_le_bytes());
            }
            Self::WrongPlace { here } => {
                out.push(4);
                out.extend(here.to_le_bytes());
            }
        }
        out
    }

    fn parse(payload: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(payload);
        let rejection = match reader.u8()? {
            1 => Self::Mismatch { what: reader.text()?, theirs: reader.text()? },
            2 => Self::Duplicate { first: reader.text()? },
            3 => Self::Complete { n_ranks: reader.u32()? },
            4 => Self::WrongPlace { here: reader.u32()? },
            _ => return Err(Malformed("a rejection is for no known reason")),
        };
        reader.end()?;
        Ok(rejection)
    }
}

/// Why a handshake ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Stranger {
    #[error("it broke the protocol: {0}")]
    Malformed(#[from] Malformed),
    #[error("{0}")]
    Unproven(&'static str),
}

/// The end that opened the connection.
pub(crate) struct Initiator {
    key: Key,
    transcript: Vec<u8>,
    proved: bool,
}

/// What the initiator is to do next.
#[derive(Debug)]
pub(crate) enum InitiatorStep {
    Send(Vec<u8>),
    Accepted { job: JobId },
    Rejected(Rejection),
}

impl Initiator {
    /// Begins; the bytes are to be sent.
    pub(crate) fn start(key: Key, hello: &Hello) -> (Self, Vec<u8>) {
        let transcript = hello.payload();
        let bytes = frame::encode(Kind::Hello, &transcript);
        (Self { key, transcript, proved: false }, bytes)
    }

    pub(crate) fn on_frame(&mut self, frame: &Frame) -> Result<InitiatorStep, Stranger> {
        match (frame.kind, self.proved) {
            (Kind::Refuse, _) => Err(Stranger::Unproven(match (self.key.secret, self.proved) {
                (true, true) => "its key is another than ours",
                (true, false) => "it does not take members with a key",
                (false, _) => "it demands a key, and we have none",
            })),
            (Kind::Challenge, false) => {
                let mut reader = Reader::new(&frame.payload);
                let secret = reader.flag()?;
                let _nonce: Nonce = reader.array()?;
                reader.end()?;
                if secret != self.key.secret {
                    return Err(Stranger::Unproven(if secret {
                        "it demands a key, and we have none"
                    } else {
                        "we have a key, and it has none"
                    }));
                }
                self.transcript.extend_from_slice(&frame.payload);
                self.proved = true;
                let proof = self.key.prove(INITIATOR, &self.transcript);
                Ok(InitiatorStep::Send(frame::encode(Kind::Proof, &proof)))
            }
            (Kind::Accept | Kind::Reject, true) => {
                let (proof, outcome) =
                    frame.payload.split_first_chunk::<32>().ok_or(Malformed("a proof is too short"))?;
                self.transcript.push(frame.kind as u8);
                self.transcript.extend_from_slice(outcome);
                if !self.key.verify(RESPONDER, &self.transcript, proof) {
                    return Err(Stranger::Unproven("its key is another than ours"));
                }
                if frame.kind == Kind::Reject {
                    return Ok(InitiatorStep::Rejected(Rejection::parse(outcome)?));
                }
                let mut reader = Reader::new(outcome);
                let job = reader.array()?;
                reader.end()?;
                Ok(InitiatorStep::Accepted { job })
            }
            _ => Err(Malformed("a frame of the handshake is out of place").into()),
        }
    }
}

/// The end that listened.
pub(crate) struct Responder {
    key: Key,
    nonce: Nonce,
    transcript: Vec<u8>,
    hello: Option<Hello>,
}

/// What the responder is to do next.
#[derive(Debug)]
pub(crate) enum ResponderStep {
    Send(Vec<u8>),
    /// It is a member; now [`accept`](Responder::accept) or [`reject`](Responder::reject).
    Verified(Hello),
}

impl Responder {
    pub(crate) fn new(key: Key, nonce: Nonce) -> Self {
        Self { key, nonce, transcript: Vec::new(), hello: None }
    }

    /// On an error, [`refusal`] may be sent before the connection is closed.
    pub(crate) fn on_frame(&mut self, frame: &Frame) -> Result<ResponderStep, Stranger> {
        match (frame.kind, self.hello.take()) {
            (Kind::Hello, None) if self.transcript.is_empty() => {
                let hello = Hello::parse(&frame.payload)?;
                if hello.secret != self.key.secret {
                    return Err(Stranger::Unproven(if hello.secret {
                        "it has a key, and this job has none"
                    } else {
                        "it has no key"
                    }));
                }
                let mut challenge = vec![u8::from(self.key.secret)];
                challenge.extend(self.nonce);
                self.transcript.extend_from_slice(&frame.payload);
                self.transcript.extend_from_slice(&challenge);
                self.hello = Some(hello);
                Ok(ResponderStep::Send(frame::encode(Kind::Challenge, &challenge)))
            }
            (Kind::Proof, Some(hello)) => {
                if self.key.verify(INITIATOR, &self.transcript, &frame.payload) {
                    Ok(ResponderStep::Verified(hello))
                } else {
                    Err(Stranger::Unproven("its key is not this job's"))
                }
            }
            _ => Err(Malformed("a frame of the handshake is out of place").into()),
        }
    }

    /// Lets a verified initiator in.
    pub(crate) fn accept(mut self, job: JobId) -> Vec<u8> {
        self.answer(Kind::Accept, &job)
    }

    /// Tells a verified initiator why it is not let in.
    pub(crate) fn reject(mut self, rejection: &Rejection) -> Vec<u8> {
        self.answer(Kind::Reject, &rejection.payload())
    }

    fn answer(&mut self, kind: Kind, outcome: &[u8]) -> Vec<u8> {
        self.transcript.push(kind as u8);
        self.transcript.extend_from_slice(outcome);
        let mut payload = self.key.prove(RESPONDER, &self.transcript).to_vec();
        payload.extend_from_slice(outcome);
        frame::encode(kind, &payload)
    }
}

/// What a stranger is told.
pub(crate) fn refusal() -> Vec<u8> {
    frame::encode(Kind::Refuse, &[])
}

const _: () =
    assert!(2 * (MAX_TEXT + 2) + 1 + 32 <= frame::MAX_HANDSHAKE, "a rejection fits a handshake's frame");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::frame::{FrameReader, MAX_HANDSHAKE};

    fn hello(secret: bool) -> Hello {
        Hello {
            version: PROTOCOL_VERSION,
            secret,
            purpose: Purpose::Join,
            job: [0; 16],
            n_ranks: 2,
            from: 1,
            to: 0,
            nonce: [7; 32],
        }
    }

    fn frame(bytes: &[u8]) -> Frame {
        let mut reader = FrameReader::new(MAX_HANDSHAKE);
        reader.push(bytes);
        reader.next().unwrap().unwrap()
    }

    /// Runs a handshake up to the responder's verdict on the initiator.
    fn run(ours: &Key, theirs: &Key) -> Result<(Initiator, Responder, Hello), Stranger> {
        let (mut initiator, bytes) = Initiator::start(ours.clone(), &hello(ours.secret));
        let mut responder = Responder::new(theirs.clone(), [9; 32]);
        let ResponderStep::Send(bytes) = responder.on_frame(&frame(&bytes))? else { panic!() };
        let InitiatorStep::Send(bytes) = initiator.on_frame(&frame(&bytes))? else { panic!() };
        let ResponderStep::Verified(hello) = responder.on_frame(&frame(&bytes))? else { panic!() };
        Ok((initiator, responder, hello))
    }

    #[test]
    fn members_get_in() {
        for key in [Key::of_unique_id([3; 32]), Key::of_secret("swordfish"), Key::none()] {
            let (mut initiator, responder, said) = run(&key, &key).unwrap();
            assert_eq!(said, hello(key.secret));
            let answer = responder.accept([5; 16]);
            assert!(matches!(
                initiator.on_frame(&frame(&answer)),
                Ok(InitiatorStep::Accepted { job: [5, ..] })
            ));
        }
    }

    #[test]
    fn reasons_arrive() {
        let key = Key::of_secret("swordfish");
        for rejection in [
            Rejection::Mismatch { what: "n_ranks".into(), theirs: "3".into() },
            Rejection::Duplicate { first: "127.0.0.1:1".into() },
            Rejection::Complete { n_ranks: 4 },
            Rejection::WrongPlace { here: 9 },
        ] {
            let (mut initiator, responder, _) = run(&key, &key).unwrap();
            let answer = responder.reject(&rejection);
            let step = initiator.on_frame(&frame(&answer)).unwrap();
            assert!(matches!(step, InitiatorStep::Rejected(r) if r == rejection));
        }
    }

    #[test]
    fn strangers_do_not() {
        let (a, b) = (Key::of_secret("a"), Key::of_secret("b"));
        assert!(run(&a, &b).is_err());
        assert!(run(&a, &Key::none()).is_err());
        assert!(run(&Key::none(), &a).is_err());
    }

    #[test]
    fn a_stranger_can_neither_accept_nor_reject() {
        let key = Key::of_secret("a");
        let (mut initiator, responder, _) = run(&key, &key).unwrap();
        let mut altered = responder.accept([5; 16]);
        *altered.last_mut().unwrap() ^= 1;
        assert!(initiator.on_frame(&frame(&altered)).is_err());

        let (mut initiator, _, _) = run(&key, &key).unwrap();
        let forged = frame::encode(Kind::Reject, &[[0; 32].as_slice(), &[3, 1, 0, 0, 0]].concat());
        assert!(initiator.on_frame(&frame(&forged)).is_err());
    }

    #[test]
    fn an_old_proof_is_worth_nothing() {
        let key = Key::of_secret("a");
        let (mut initiator, first) = Initiator::start(key.clone(), &hello(true));
        let mut responder = Responder::new(key.clone(), [1; 32]);
        let ResponderStep::Send(challenge) = responder.on_frame(&frame(&first)).unwrap() else { panic!() };
        let InitiatorStep::Send(proof) = initiator.on_frame(&frame(&challenge)).unwrap() else { panic!() };
        let mut later = Responder::new(key, [2; 32]);
        later.on_frame(&frame(&first)).unwrap();
        assert!(later.on_frame(&frame(&proof)).is_err());
    }

    #[test]
    fn the_order_of_frames_is_fixed() {
        let key = Key::none();
        let mut responder = Responder::new(key.clone(), [1; 32]);
        assert!(responder.on_frame(&Frame { kind: Kind::Proof, payload: vec![0; 32] }).is_err());
        let (mut initiator, first) = Initiator::start(key.clone(), &hello(false));
        assert!(initiator.on_frame(&Frame { kind: Kind::Accept, payload: vec![0; 48] }).is_err());
        let mut responder = Responder::new(key, [1; 32]);
        responder.on_frame(&frame(&first)).unwrap();
        assert!(responder.on_frame(&frame(&first)).is_err());
    }
}
