//! The [handshake](mscclpp_net::handshake) between ranks: who has the job's key, and what is told to who has not.
//!
//! Only after its proof are version, job, number of ranks and rank of a member looked at. Without a key both sides use one
//! that everybody knows; the exchange then only shows that the other end is alive and speaks this protocol, which recorded
//! or random bytes do not.

use mscclpp_net::handshake::{self, Claim, Failure, Frame, Verified};
use mscclpp_net::key::Nonce;
use mscclpp_net::wire::{Malformed, Wire};

use crate::protocol::hello::{Hello, JobId, Rejection};
use crate::protocol::key::JobKey;

const PROTOCOL: &str = "mscclpp-bootstrap";

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

impl HandshakeError {
    /// What it means to a rank that has a secret key, or has none.
    fn of(failure: Failure, secret: bool) -> Self {
        match (failure, secret) {
            (Failure::Malformed(malformed), _) => Self::Malformed(malformed),
            (Failure::Full(descriptors), _) => Self::Full(descriptors),
            (Failure::Key, _) | (Failure::Refused(1), true) => Self::Unproven("its key is not ours"),
            (Failure::Refused(0), true) => Self::Unproven("it does not take members with a key"),
            (Failure::Refused(1), false) => Self::Unproven("it demands a key, and we have none"),
            (Failure::Refused(0), false) => Self::Unproven("it did not understand us"),
            (Failure::Refused(_), _) => Self::Malformed(Malformed("a flag is neither 0 nor 1")),
        }
    }
}

/// The end that opened the connection, once it has answered the challenge.
pub(crate) struct Initiator {
    secret: bool,
    initiator: handshake::Initiator,
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
        key: &JobKey,
        hello: &Hello,
        first: &Frame,
    ) -> Result<(Self, Vec<u8>), HandshakeError> {
        let secret = key.secret;
        handshake::Initiator::answer(PROTOCOL, &key.key, &hello.to_bytes(), first)
            .map(|(initiator, bytes)| (Self { secret, initiator }, bytes))
            .map_err(|failure| HandshakeError::of(failure, secret))
    }

    /// Takes the answer to the hello.
    pub(crate) fn conclude(self, frame: &Frame) -> Result<Answer, HandshakeError> {
        let answer =
            self.initiator.conclude(frame).map_err(|failure| HandshakeError::of(failure, self.secret))?;
        if !answer.accepted {
            return Ok(Answer::Rejected(Rejection::parse(answer.said)?));
        }
        Ok(Answer::Accepted { job: JobId::parse(answer.said)? })
    }
}

/// The end that listened, until the other has proved itself.
pub(crate) struct Responder {
    key: JobKey,
    responder: handshake::Responder,
}

impl Responder {
    /// Begins; the bytes are to be sent. A nonce must never be used twice.
    pub(crate) fn challenge(key: JobKey, nonce: Nonce) -> (Self, Vec<u8>) {
        let (responder, challenge) = handshake::Responder::challenge(PROTOCOL, nonce);
        (Self { key, responder }, challenge)
    }

    /// Takes the first frame of the other end: who is it? On an error, a [`refusal`](Self::refusal) may be sent before
    /// the connection is closed.
    pub(crate) fn verify(&self, first: &Frame) -> Result<(Hello, Verified), HandshakeError> {
        let claim = Claim::of(first).map_err(|failure| HandshakeError::of(failure, self.key.secret))?;
        let hello = Hello::of_any_version(claim.said)?;
        match (hello.secret, self.key.secret) {
            (true, false) => Err(HandshakeError::Unproven("it has a key, and this job has none")),
            (false, true) => Err(HandshakeError::Unproven("it has no key")),
            _ => match self.responder.verify(&self.key.key, &claim) {
                Ok(verified) => Ok((hello, verified)),
                Err(_) => Err(HandshakeError::Unproven("its key is not this job's")),
            },
        }
    }

    /// What somebody says of itself who was not verified: for messages alone.
    pub(crate) fn claim(first: &Frame) -> Option<Hello> {
        Hello::of_any_version(Claim::of(first).ok()?.said).ok()
    }

    /// The answer to a stranger: that it does not belong here, and whether a key is needed.
    pub(crate) fn refusal(&self) -> Vec<u8> {
        handshake::Responder::refusal(u8::from(self.key.secret))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzzing;
    use crate::protocol::frame::{FrameReader, MAX_HANDSHAKE};
    use crate::protocol::hello::PROTOCOL_VERSION;

    fn hello(secret: bool) -> Hello {
        fuzzing::hello(secret, 2, 1)
    }

    fn frame(bytes: &[u8]) -> Frame {
        let mut reader = FrameReader::new(MAX_HANDSHAKE);
        reader.push(bytes);
        reader.take().unwrap().unwrap()
    }

    /// Runs a handshake up to the responder's verdict on the initiator.
    fn run(ours: &JobKey, theirs: &JobKey) -> Result<(Initiator, Verified, Hello), HandshakeError> {
        let (responder, challenge) = Responder::challenge(theirs.clone(), [9; 32]);
        let (initiator, bytes) = Initiator::answer(ours, &hello(ours.secret), &frame(&challenge))?;
        let (said, verified) = responder.verify(&frame(&bytes))?;
        Ok((initiator, verified, said))
    }

    #[test]
    fn members_get_in() {
        for key in [JobKey::of_unique_id([3; 32]), JobKey::of_secret("swordfish"), JobKey::none()] {
            let (initiator, verified, said) = run(&key, &key).unwrap();
            assert_eq!(said, hello(key.secret));
            let answer = initiator.conclude(&frame(&verified.accept(&[5; 16])));
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
            let answer = initiator.conclude(&frame(&verified.reject(&rejection.to_bytes())));
            assert_eq!(answer, Ok(Answer::Rejected(rejection)));
        }
    }

    #[test]
    fn the_version_is_not_looked_at_before_the_proof() {
        let key = JobKey::of_secret("a");
        let newer = Hello { version: PROTOCOL_VERSION + 1, ..hello(true) };
        let (responder, challenge) = Responder::challenge(key.clone(), [9; 32]);
        let (_, bytes) = Initiator::answer(&key, &newer, &frame(&challenge)).unwrap();
        assert_eq!(
            responder.verify(&frame(&bytes)).unwrap().0,
            newer,
            "proved; what differs is told in an answer"
        );
        let (_, forged) = Initiator::answer(&JobKey::of_secret("b"), &newer, &frame(&challenge)).unwrap();
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
            let (initiator, _) = Initiator::answer(ours, &hello(ours.secret), &frame(&challenge)).unwrap();
            let end = initiator.conclude(&frame(&responder.refusal()));
            assert_eq!(end, Err(HandshakeError::Unproven(told)));
        }
    }

    #[test]
    fn a_challenge_does_not_depend_on_the_key() {
        let challenges = [JobKey::of_secret("a"), JobKey::of_unique_id([1; 32]), JobKey::none()]
            .map(|key| Responder::challenge(key, [9; 32]).1);
        assert!(challenges.iter().all(|challenge| *challenge == challenges[0]));
    }

    #[test]
    fn who_has_no_room_is_not_taken_for_a_stranger() {
        let full = frame(&handshake::Responder::full(64));
        let answered = Initiator::answer(&JobKey::none(), &hello(false), &full).map(drop);
        assert_eq!(answered, Err(HandshakeError::Full(64)));
    }
}
