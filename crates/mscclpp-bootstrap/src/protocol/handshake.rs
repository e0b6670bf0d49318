//! How two ends of a connection prove to each other that they belong to one job.
//!
//! ```text
//! responder, which was connected to            initiator
//!   Challenge  nonce                       ->
//!                                          <-  Hello  HMAC(key, "initiator", all), who, whom, which job, nonce
//!   Accept / Reject  HMAC(key, "responder", all), answer  ->
//! ```
//! - The responder speaks first, so that an initiator says who it is and proves it in the first thing it sends. From
//!   then on the end of its connection is that of a known rank.
//! - The challenge is random and nothing else, and the initiator proves itself first: a stranger who can only connect
//!   learns nothing that depends on the key.
//! - Each proof covers both nonces, everything said before and the side that makes it: an old proof, or one of the
//!   other side, is worth nothing. Proofs are compared in constant time.
//! - Only after its proof are version, job, number of ranks and rank of a member looked at. A reason for not letting it in
//!   is proved like the opposite, so a stranger on our port cannot make a rank give up.
//! - A responder that has no descriptor left sends a `Full` in place of the challenge. Anybody could: it means that there is
//!   no connection now.
//! - An initiator without a proof, or with another key, gets a `Refuse`, which cannot be proved to it. To a rank that has
//!   a key, a `Refuse` and a wrong proof mean only that the answer is not from its job.
//!
//! It authenticates the connection, not the bytes that follow: who can change packets between two hosts is not kept out.
//! Without a key both sides use one that everybody knows; the exchange then only shows that the other end is alive and
//! speaks this protocol, which recorded or random bytes do not.

use crate::protocol::frame::{self, Frame, Kind};
use mscclpp_net::key::{Nonce, Proof, Transcript};

use crate::protocol::hello::{Hello, JobId, Rejection};
use crate::protocol::key::JobKey;
use mscclpp_net::wire::{Malformed, Reader};

const INITIATOR: &[u8] = b"mscclpp-bootstrap initiator\0";
const RESPONDER: &[u8] = b"mscclpp-bootstrap responder\0";

/// Why a handshake ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("it broke the protocol: {0}")]
    Malformed(#[from] Malformed),
    #[error("{0}")]
    Unproven(&'static str),
    #[error("it accepts no more connections")]
    Full(u32),
}

const OUT_OF_PLACE: HandshakeError =
    HandshakeError::Malformed(Malformed("a frame of the handshake is out of place"));

/// The payload of a frame that begins with a proof.
fn split_proof(payload: &[u8]) -> Result<(&Proof, &[u8]), Malformed> {
    payload.split_first_chunk().ok_or(Malformed("a proof is too short"))
}

/// The end that opened the connection, once it has answered the challenge.
pub(crate) struct Initiator {
    secret: bool,
    transcript: Transcript,
}

/// How a member answers to an initiator.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Accepted { job: JobId },
    Rejected(Rejection),
}

impl Initiator {
    /// Answers the first frame of the other end; the bytes are to be sent.
    pub(crate) fn answer(
        key: JobKey,
        hello: &Hello,
        first: &Frame,
    ) -> Result<(Self, Vec<u8>), HandshakeError> {
        let mut reader = Reader::new(&first.payload);
        match first.kind {
            Kind::Challenge => {}
            Kind::Full => return Err(HandshakeError::Full(reader.u32()?)),
            _ => return Err(OUT_OF_PLACE),
        }
        let _nonce: Nonce = reader.array()?;
        reader.end()?;
        let hello = hello.payload();
        let mut transcript = Transcript::new(key.key);
        transcript.add(&first.payload).add(&hello);
        let payload = [transcript.prove(INITIATOR).as_slice(), &hello].concat();
        Ok((Self { secret: key.secret, transcript }, frame::encode(Kind::Hello, &payload)))
    }

    /// Takes the answer to the hello.
    pub(crate) fn conclude(mut self, frame: &Frame) -> Result<Answer, HandshakeError> {
        match frame.kind {
            Kind::Refuse => {
                let mut reader = Reader::new(&frame.payload);
                let keyed = reader.flag()?;
                reader.end()?;
                Err(HandshakeError::Unproven(match (self.secret, keyed) {
                    (true, true) => "its key is not ours",
                    (true, false) => "it does not take members with a key",
                    (false, true) => "it demands a key, and we have none",
                    (false, false) => "it did not understand us",
                }))
            }
            Kind::Accept | Kind::Reject => {
                let (proof, answer) = split_proof(&frame.payload)?;
                self.transcript.add(&[frame.kind as u8]).add(answer);
                if !self.transcript.verify(RESPONDER, proof) {
                    return Err(HandshakeError::Unproven("its key is not ours"));
                }
                if frame.kind == Kind::Reject {
                    return Ok(Answer::Rejected(Rejection::parse(answer)?));
                }
                let mut reader = Reader::new(answer);
                let job = reader.array()?;
                reader.end()?;
                Ok(Answer::Accepted { job })
            }
            _ => Err(OUT_OF_PLACE),
        }
    }
}

/// The end that listened, until the other has proved itself.
pub(crate) struct Responder {
    key: JobKey,
    nonce: Nonce,
}

impl Responder {
    /// Begins; the bytes are to be sent. A nonce must never be used twice.
    pub(crate) fn challenge(key: JobKey, nonce: Nonce) -> (Self, Vec<u8>) {
        (Self { key, nonce }, frame::encode(Kind::Challenge, &nonce))
    }

    /// What is sent in place of a challenge by who has this many descriptors open, and may have no more.
    pub(crate) fn full(descriptors: u32) -> Vec<u8> {
        frame::encode(Kind::Full, &descriptors.to_le_bytes())
    }

    /// Takes the first frame of the other end: who is it? On an error, a [`refusal`](Self::refusal) may be sent before
    /// the connection is closed.
    pub(crate) fn verify(&self, first: &Frame) -> Result<(Hello, Verified), HandshakeError> {
        if first.kind != Kind::Hello {
            return Err(OUT_OF_PLACE);
        }
        let (proof, said) = split_proof(&first.payload)?;
        let hello = Hello::parse(said)?;
        if hello.secret != self.key.secret {
            return Err(HandshakeError::Unproven(if hello.secret {
                "it has a key, and this job has none"
            } else {
                "it has no key"
            }));
        }
        let mut transcript = Transcript::new(self.key.key.clone());
        transcript.add(&self.nonce).add(said);
        if !transcript.verify(INITIATOR, proof) {
            return Err(HandshakeError::Unproven("its key is not this job's"));
        }
        Ok((hello, Verified { transcript }))
    }

    /// What somebody says of itself who was not verified: for messages alone.
    pub(crate) fn claim(first: &Frame) -> Option<Hello> {
        let (_, said) = split_proof(&first.payload).ok()?;
        Hello::parse(said).ok()
    }

    /// The answer to a stranger: that it does not belong here, and whether a key is needed.
    pub(crate) fn refusal(&self) -> Vec<u8> {
        frame::encode(Kind::Refuse, &[u8::from(self.key.secret)])
    }
}

/// The end that listened, once the other has proved itself and is to be answered.
pub(crate) struct Verified {
    transcript: Transcript,
}

impl Verified {
    /// Lets it in.
    pub(crate) fn accept(self, job: JobId) -> Vec<u8> {
        self.answer(Kind::Accept, &job)
    }

    /// Tells it why it is not let in.
    pub(crate) fn reject(self, rejection: &Rejection) -> Vec<u8> {
        self.answer(Kind::Reject, &rejection.payload())
    }

    fn answer(mut self, kind: Kind, answer: &[u8]) -> Vec<u8> {
        self.transcript.add(&[kind as u8]).add(answer);
        let proof = self.transcript.prove(RESPONDER);
        frame::encode(kind, &[proof.as_slice(), answer].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::frame::{FrameReader, MAX_HANDSHAKE};
    use crate::protocol::hello::{PROTOCOL_VERSION, Process, Purpose};

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
            process: Process::own(),
            generation: 0,
        }
    }

    fn frame(bytes: &[u8]) -> Frame {
        let mut reader = FrameReader::new(MAX_HANDSHAKE);
        reader.push(bytes);
        reader.next().unwrap().unwrap()
    }

    /// Runs a handshake up to the responder's verdict on the initiator.
    fn run(ours: &JobKey, theirs: &JobKey) -> Result<(Initiator, Verified, Hello), HandshakeError> {
        let (responder, challenge) = Responder::challenge(theirs.clone(), [9; 32]);
        let (initiator, bytes) = Initiator::answer(ours.clone(), &hello(ours.secret), &frame(&challenge))?;
        let (said, verified) = responder.verify(&frame(&bytes))?;
        Ok((initiator, verified, said))
    }

    #[test]
    fn members_get_in() {
        for key in [JobKey::of_unique_id([3; 32]), JobKey::of_secret("swordfish"), JobKey::none()] {
            let (initiator, verified, said) = run(&key, &key).unwrap();
            assert_eq!(said, hello(key.secret));
            let answer = initiator.conclude(&frame(&verified.accept([5; 16])));
            assert_eq!(answer, Ok(Answer::Accepted { job: [5; 16] }));
        }
    }

    #[test]
    fn reasons_arrive() {
        let key = JobKey::of_secret("swordfish");
        for rejection in [
            Rejection::Mismatch { what: "n_ranks".into(), theirs: "3".into() },
            Rejection::Duplicate { first: "127.0.0.1:1".into() },
            Rejection::Complete { n_ranks: 4 },
            Rejection::WrongPlace { here: 9 },
            Rejection::OtherJob { theirs: "Slurm job 7 step 0".into() },
        ] {
            let (initiator, verified, _) = run(&key, &key).unwrap();
            let answer = initiator.conclude(&frame(&verified.reject(&rejection)));
            assert_eq!(answer, Ok(Answer::Rejected(rejection)));
        }
    }

    #[test]
    fn the_version_is_not_looked_at_before_the_proof() {
        let key = JobKey::of_secret("a");
        let newer = Hello { version: PROTOCOL_VERSION + 1, ..hello(true) };
        let (responder, challenge) = Responder::challenge(key.clone(), [9; 32]);
        let (_, bytes) = Initiator::answer(key, &newer, &frame(&challenge)).unwrap();
        assert_eq!(
            responder.verify(&frame(&bytes)).unwrap().0,
            newer,
            "proved; what differs is told in an answer"
        );
        let (_, forged) = Initiator::answer(JobKey::of_secret("b"), &newer, &frame(&challenge)).unwrap();
        assert!(matches!(responder.verify(&frame(&forged)), Err(HandshakeError::Unproven(_))));
    }

    #[test]
    fn strangers_do_not_get_in_and_hear_about_keys_alone() {
        let (a, b) = (JobKey::of_secret("a"), JobKey::of_secret("b"));
        for (ours, theirs, told) in [
            (&a, &b, "its key is not ours"),
            (&a, &JobKey::none(), "it does not take members with a key"),
            (&JobKey::none(), &a, "it demands a key, and we have none"),
        ] {
            assert!(matches!(run(ours, theirs), Err(HandshakeError::Unproven(_))));
            let (responder, challenge) = Responder::challenge(theirs.clone(), [9; 32]);
            let (initiator, _) =
                Initiator::answer(ours.clone(), &hello(ours.secret), &frame(&challenge)).unwrap();
            let end = initiator.conclude(&frame(&responder.refusal()));
            assert_eq!(end, Err(HandshakeError::Unproven(told)));
        }
    }

    #[test]
    fn who_has_no_room_says_so_in_place_of_a_challenge() {
        let full = frame(&Responder::full(64));
        let answered = |frame: &Frame| Initiator::answer(JobKey::none(), &hello(false), frame).map(drop);
        assert_eq!(answered(&full), Err(HandshakeError::Full(64)));
        let cut = Frame { payload: full.payload[1..].to_vec(), ..full };
        assert!(matches!(answered(&cut), Err(HandshakeError::Malformed(_))));
    }

    #[test]
    fn a_challenge_does_not_depend_on_the_key() {
        let challenges = [JobKey::of_secret("a"), JobKey::of_unique_id([1; 32]), JobKey::none()]
            .map(|key| Responder::challenge(key, [9; 32]).1);
        assert!(challenges.iter().all(|challenge| *challenge == challenges[0]));
    }

    #[test]
    fn an_old_proof_is_worth_nothing() {
        let key = JobKey::of_secret("a");
        let (responder, challenge) = Responder::challenge(key.clone(), [1; 32]);
        let (initiator, first) = Initiator::answer(key.clone(), &hello(true), &frame(&challenge)).unwrap();
        let (_, verified) = responder.verify(&frame(&first)).unwrap();
        let accept = verified.accept([5; 16]);
        assert!(initiator.conclude(&frame(&accept)).is_ok());

        let (later, _) = Responder::challenge(key.clone(), [2; 32]);
        assert!(matches!(later.verify(&frame(&first)), Err(HandshakeError::Unproven(_))));
        // The same challenge again, from one who recorded an earlier handshake.
        let fresh = Hello { nonce: [8; 32], ..hello(true) };
        let (initiator, _) = Initiator::answer(key, &fresh, &frame(&challenge)).unwrap();
        assert!(matches!(initiator.conclude(&frame(&accept)), Err(HandshakeError::Unproven(_))));
    }

    #[test]
    fn nothing_can_be_sent_back_to_who_said_it() {
        let key = JobKey::of_secret("a");
        let (responder, challenge) = Responder::challenge(key.clone(), [1; 32]);
        let (initiator, first) = Initiator::answer(key.clone(), &hello(true), &frame(&challenge)).unwrap();
        assert!(responder.verify(&frame(&challenge)).is_err());
        assert!(Initiator::answer(key, &hello(true), &frame(&first)).is_err());
        // Also not as the answer it would have to be.
        let mirrored = Frame { kind: Kind::Accept, payload: frame(&first).payload };
        assert!(matches!(initiator.conclude(&mirrored), Err(HandshakeError::Unproven(_))));
    }

    #[test]
    fn what_was_cut_or_changed_is_worth_nothing() {
        let key = JobKey::of_secret("a");
        let (responder, challenge) = Responder::challenge(key.clone(), [1; 32]);
        let challenge = frame(&challenge);
        let answered = || Initiator::answer(key.clone(), &hello(true), &challenge).unwrap();
        let first = frame(&answered().1);
        let accept = frame(&responder.verify(&first).unwrap().1.accept([5; 16]));
        let reject = Rejection::Complete { n_ranks: 4 };
        let reject = frame(&responder.verify(&first).unwrap().1.reject(&reject));

        for changed in changes(&first) {
            assert!(responder.verify(&changed).is_err(), "{changed:?}");
        }
        for answer in [&accept, &reject] {
            for changed in changes(answer) {
                assert!(answered().0.conclude(&changed).is_err(), "{changed:?}");
            }
        }
        // A changed challenge is not recognised; what is said in answer to it does not fit the true one.
        for changed in changes(&challenge) {
            if let Ok((_, bytes)) = Initiator::answer(key.clone(), &hello(true), &changed) {
                assert!(matches!(responder.verify(&frame(&bytes)), Err(HandshakeError::Unproven(_))));
            }
        }
    }

    /// A frame with each of its bits flipped, cut to each length, a byte longer, and as of another kind.
    fn changes(good: &Frame) -> Vec<Frame> {
        let with = |payload: Vec<u8>| Frame { kind: good.kind, payload };
        let flipped = (0..8 * good.payload.len()).map(|bit| {
            let mut payload = good.payload.clone();
            payload[bit / 8] ^= 1 << (bit % 8);
            with(payload)
        });
        let cut = (0..good.payload.len()).map(|end| with(good.payload[..end].to_vec()));
        let longer = with([good.payload.as_slice(), &[0]].concat());
        let kinds = [Kind::Challenge, Kind::Hello, Kind::Accept, Kind::Reject, Kind::Refuse, Kind::Join];
        let other = kinds.into_iter().filter(|kind| *kind != good.kind);
        let other = other.map(|kind| Frame { kind, payload: good.payload.clone() });
        flipped.chain(cut).chain([longer]).chain(other).collect()
    }
}
