//! The [handshake](mscclpp_net::handshake) between ranks: the proof of the job's key, and the answers to members and
//! strangers.
//!
//! Version, job, number of ranks and rank of a member are checked only after its proof. Without a key both sides use
//! one that everybody knows; the exchange then only shows that the other end is alive and speaks this protocol, which
//! recorded or random bytes do not.

use mscclpp_net::handshake::{Claim, Failure, Frame, Initiator, Responder, Verified};
use mscclpp_net::key::{Key, Nonce};
use mscclpp_net::wire::{Malformed, Wire};

use crate::protocol::hello::{Hello, JobId, Rejection};

const PROTOCOL: &str = "mscclpp-bootstrap";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    #[error("it broke the protocol: {0}")]
    Malformed(#[from] Malformed),
    #[error("{0}")]
    Unproven(&'static str),
    #[error("it accepts no more connections")]
    Full(u32),
}

/// The answer of a member to an initiator.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    Accepted { job: JobId },
    Rejected(Rejection),
}

/// The key that the members of a job share.
#[derive(Clone)]
pub struct JobKey {
    key: Key,
    /// Whether the key is a secret, and not the common key of jobs that have none.
    pub secret: bool,
}

impl JobKey {
    pub fn of_unique_id(bytes: [u8; 32]) -> Self {
        Self { key: Key::from_bytes(bytes), secret: true }
    }

    pub fn of_secret(secret: &str) -> Self {
        Self { key: Key::of_text(b"mscclpp-bootstrap secret\0", secret), secret: true }
    }

    pub fn none() -> Self {
        Self { key: Key::from_bytes([0; 32]), secret: false }
    }

    /// Answers the first frame of the other end, on the side that opened the connection. Returns the bytes to send.
    pub fn answer(&self, hello: &Hello, first: &Frame) -> Result<(Initiator, Vec<u8>), HandshakeError> {
        Initiator::answer(PROTOCOL, &self.key, &hello.to_bytes(), first)
            .map_err(|failure| self.error(failure))
    }

    pub fn conclude(&self, initiator: Initiator, frame: &Frame) -> Result<Answer, HandshakeError> {
        let answer = initiator.conclude(frame).map_err(|failure| self.error(failure))?;
        Ok(match answer.accepted {
            true => Answer::Accepted { job: JobId::parse(answer.said)? },
            false => Answer::Rejected(Rejection::parse(answer.said)?),
        })
    }

    /// Verifies the first frame of an end that was challenged. On an error, a [`refusal`](Self::refusal) may be sent
    /// before the connection is closed.
    pub fn verify(&self, responder: &Responder, first: &Frame) -> Result<(Hello, Verified), HandshakeError> {
        let claim = Claim::of(first).map_err(|failure| self.error(failure))?;
        let hello = Hello::of_any_version(claim.said)?;
        match (hello.secret, self.secret) {
            (true, false) => Err(HandshakeError::Unproven("it has a key, and this job has none")),
            (false, true) => Err(HandshakeError::Unproven("it has no key")),
            _ => match responder.verify(&self.key, &claim) {
                Ok(verified) => Ok((hello, verified)),
                Err(_) => Err(HandshakeError::Unproven("its key is not this job's")),
            },
        }
    }

    /// Returns the answer to a stranger: it does not belong here, and a key is needed or not.
    pub fn refusal(&self) -> Vec<u8> {
        Responder::refusal(u8::from(self.secret))
    }

    /// Converts a failure to the error for a rank that has a secret key, or has none.
    fn error(&self, failure: Failure) -> HandshakeError {
        use HandshakeError::{Full, Malformed as Broken, Unproven};
        match (failure, self.secret) {
            (Failure::Malformed(malformed), _) => Broken(malformed),
            (Failure::Full(descriptors), _) => Full(descriptors),
            (Failure::Key, _) | (Failure::Refused(1), true) => Unproven("its key is not ours"),
            (Failure::Refused(0), true) => Unproven("it does not take members with a key"),
            (Failure::Refused(1), false) => Unproven("it demands a key, and we have none"),
            (Failure::Refused(0), false) => Unproven("it did not understand us"),
            (Failure::Refused(_), _) => Broken(Malformed("a flag is neither 0 nor 1")),
        }
    }
}

/// Challenges a process that has connected. Returns the bytes to send. A nonce must never be used twice.
pub fn challenge(nonce: Nonce) -> (Responder, Vec<u8>) {
    Responder::challenge(PROTOCOL, nonce)
}

/// Returns the unverified hello of a process, for messages alone.
pub fn claim(first: &Frame) -> Option<Hello> {
    Hello::of_any_version(Claim::of(first).ok()?.said).ok()
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
        let (responder, challenge) = challenge([9; 32]);
        let (initiator, bytes) = ours.answer(&hello(ours.secret), &frame(&challenge))?;
        let (said, verified) = theirs.verify(&responder, &frame(&bytes))?;
        Ok((initiator, verified, said))
    }

    #[test]
    fn members_get_in() {
        for key in [JobKey::of_unique_id([3; 32]), JobKey::of_secret("swordfish"), JobKey::none()] {
            let (initiator, verified, said) = run(&key, &key).unwrap();
            assert_eq!(said, hello(key.secret));
            let answer = key.conclude(initiator, &frame(&verified.accept(&[5; 16])));
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
            let answer = key.conclude(initiator, &frame(&verified.reject(&rejection.to_bytes())));
            assert_eq!(answer, Ok(Answer::Rejected(rejection)));
        }
    }

    #[test]
    fn the_version_is_not_looked_at_before_the_proof() {
        let key = JobKey::of_secret("a");
        let newer = Hello { version: PROTOCOL_VERSION + 1, ..hello(true) };
        let (responder, challenge) = challenge([9; 32]);
        let answered = |key: &JobKey| frame(&key.answer(&newer, &frame(&challenge)).unwrap().1);
        let (proved, _) = key.verify(&responder, &answered(&key)).unwrap();
        assert_eq!(proved, newer, "what differs is told in an answer");
        let forged = answered(&JobKey::of_secret("b"));
        assert!(matches!(key.verify(&responder, &forged), Err(HandshakeError::Unproven(_))));
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
            let first = frame(&challenge([9; 32]).1);
            let (initiator, _) = ours.answer(&hello(ours.secret), &first).unwrap();
            let end = ours.conclude(initiator, &frame(&theirs.refusal()));
            assert_eq!(end, Err(HandshakeError::Unproven(told)));
        }
    }

    #[test]
    fn who_has_no_room_is_not_taken_for_a_stranger() {
        let answered = JobKey::none().answer(&hello(false), &frame(&Responder::full(64))).map(drop);
        assert_eq!(answered, Err(HandshakeError::Full(64)));
    }
}
