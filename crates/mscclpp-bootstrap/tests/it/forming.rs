//! Tests of ranks that are lost, or send something wrong, while the job forms. The tests play these ranks, so that
//! each ends exactly at the wanted step; `processes` does the same with processes that are killed.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;

use crate::ranks::{
    PATIENCE, brief, builder, challenged, connect, free_port, hear, in_threads, prove, with_enough_time,
};
use mscclpp_bootstrap::fuzzing::{RawRank, kinds};
use mscclpp_bootstrap::{Bootstrap, Env, Error, Forming, MeetingPlace, TcpBootstrap, TcpBootstrapBuilder};
use mscclpp_net::frame;

/// The kind of a job's key.
#[derive(Clone, Copy)]
enum Kind {
    Id,
    Secret,
    None,
}

const KINDS: [Kind; 3] = [Kind::Id, Kind::Secret, Kind::None];

/// A job of four ranks that has not formed yet.
struct Job {
    at: MeetingPlace,
    secret: Option<&'static str>,
    /// The address at which rank 0 listens.
    address: String,
}

impl Job {
    const RANKS: u32 = 4;

    fn new(kind: Kind) -> Self {
        let named = |address: String| (MeetingPlace::Address(address.clone()), address);
        let (at, address) = match kind {
            Kind::Id => {
                let id = TcpBootstrap::create_unique_id_in(&Env::default()).unwrap();
                (MeetingPlace::Id(id), format!("127.0.0.1:{}", id.addresses()[0].port()))
            }
            Kind::Secret | Kind::None => named(format!("127.0.0.1:{}", free_port())),
        };
        Self { at, secret: matches!(kind, Kind::Secret).then_some("swordfish"), address }
    }

    /// Begins to join the job.
    fn start(&self, rank: usize) -> Forming {
        let builder = builder(rank, Self::RANKS as usize);
        self.secret.into_iter().fold(builder, TcpBootstrapBuilder::secret).start(self.at.clone()).unwrap()
    }

    /// Makes a rank of the job that the test plays.
    fn raw(&self, rank: u32) -> RawRank {
        match (&self.at, self.secret) {
            (MeetingPlace::Id(id), _) => RawRank::of_id(id, Self::RANKS, rank),
            (_, Some(secret)) => RawRank::of_secret(secret, Self::RANKS, rank),
            (_, None) => RawRank::without_key(Self::RANKS, rank),
        }
    }
}

/// Runs `rank_2`, which does something and ends, while ranks 0 and 1 wait; after that rank 3 comes. All must lose
/// rank 2.
fn all_lose_rank_2(job: &Job, rank_2: impl FnOnce()) {
    let [zero, one] = [0, 1].map(|rank| job.start(rank));
    rank_2();
    for outcome in [zero, one, job.start(3)].map(|rank| rank.wait().map(drop)) {
        assert!(matches!(outcome, Err(Error::PeerLost { rank: 2, .. })), "{outcome:?}");
    }
}

#[test]
fn a_rank_that_is_gone_after_its_proof_is_lost() {
    for kind in KINDS {
        let job = Job::new(kind);
        all_lose_rank_2(&job, || {
            let (mut stream, proof) = challenged(&mut job.raw(2), &job.address);
            stream.write_all(&proof).unwrap();
        });
    }
}

#[test]
fn a_rank_that_is_gone_after_it_was_let_in_is_lost() {
    for kind in KINDS {
        let job = Job::new(kind);
        all_lose_rank_2(&job, || {
            let (_stream, answer) = prove(job.raw(2), &job.address);
            assert!(answer.contains("Accepted"), "{answer}");
        });
    }
}

#[test]
fn a_proof_can_be_used_once() {
    for kind in KINDS {
        let job = Job::new(kind);
        all_lose_rank_2(&job, || {
            let mut rank = job.raw(2);
            let (mut stream, proof) = challenged(&mut rank, &job.address);
            stream.write_all(&proof).unwrap();
            assert!(hear(&mut rank, &stream).unwrap_err().contains("Accepted"));
            // On another connection, with another challenge, the proof is worth nothing, and does no harm.
            let mut thief = job.raw(2);
            let (mut stolen, _) = challenged(&mut thief, &job.address);
            stolen.write_all(&proof).unwrap();
            let answer = hear(&mut thief, &stolen).unwrap_err();
            assert!(!answer.contains("Accepted"), "{answer}");
        });
    }
}

#[test]
fn a_rank_that_two_claim_is_told_though_one_has_said_no_more() {
    let at = format!("127.0.0.1:{}", free_port());
    std::thread::scope(|scope| {
        let at = &at;
        let zero = scope.spawn(|| brief(0, 2).connect(at.as_str()).map(drop));
        let (mut silent, answer) = prove(RawRank::without_key(2, 1), at);
        assert!(answer.contains("Accepted"), "{answer}");
        // With this rank the job would be complete.
        let one = scope.spawn(|| connect(1, 2, at.as_str(), PATIENCE).map(drop));
        let rival = format!("{} (process ", silent.local_addr().unwrap());
        for outcome in [zero, one].map(|rank| rank.join().unwrap()) {
            match outcome {
                Err(Error::DuplicateRank { rank: 1, first, second, .. }) => {
                    assert!(second.starts_with(&rival), "{second}");
                    assert!(!first.starts_with(&rival), "{first}");
                }
                other => panic!("{other:?}"),
            }
        }
        let mut said = Vec::new();
        silent.read_to_end(&mut said).unwrap();
        assert_eq!(said.get(2), Some(&19), "a notice: {said:?}");
    });
}

#[test]
fn a_connection_that_ends_before_its_proof_is_a_strangers() {
    with_enough_time(|timeout| {
        let at = &format!("127.0.0.1:{}", free_port());
        std::thread::scope(|scope| {
            let join = |rank| scope.spawn(move || connect(rank, 3, at.as_str(), timeout).map(drop));
            let waiting = [0, 1].map(join);
            drop(challenged(&mut RawRank::without_key(3, 2), at));
            for outcome in waiting.map(|rank| rank.join().unwrap()) {
                match outcome {
                    Err(Error::Timeout { missing, .. }) => assert_eq!(missing, [2]),
                    other => panic!("{other:?}"),
                }
            }
        });
    });
}

#[test]
fn who_speaks_first_where_it_should_listen_is_refused() {
    let job = Job::new(Kind::None);
    let (done, over) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            drop(brief(0, 4).connect(job.at.clone()));
            done.send(()).unwrap();
        });
        let mut rank = job.raw(1);
        let (stream, _) = challenged(&mut rank, &job.address);
        drop(stream);
        for first in [frame::encode(1, &[0; 98]), frame::encode(2, &[0; 66])] {
            let mut stream = TcpStream::connect(&job.address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(&first).unwrap();
            let mut said = Vec::new();
            stream.read_to_end(&mut said).unwrap();
            let refusal = frame::encode(5, &[0]);
            assert!(said.ends_with(&refusal), "a challenge, a refusal, and the end: {said:?}");
        }
        assert!(over.try_recv().is_err(), "the job is not disturbed");
        drop(prove(job.raw(1), &job.address));
        over.recv_timeout(PATIENCE).unwrap();
    });
}

#[test]
fn a_rank_that_gives_up_says_so_behind_its_proof() {
    with_enough_time(|timeout| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap().to_string();
        std::thread::scope(|scope| {
            let rank = scope.spawn(|| connect(1, 2, at.as_str(), timeout).map(drop));
            // This rank 0 is too slow to answer.
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(&frame::encode(1, &[0; 32])).unwrap();
            let mut said = Vec::new();
            stream.read_to_end(&mut said).unwrap();
            drop(stream);
            assert!(matches!(rank.join().unwrap(), Err(Error::Timeout { .. })));
            assert_eq!(kinds(&said), [2, 19], "a hello, a notice, and the end");
        });
    });
}

#[test]
fn a_proof_that_is_withdrawn_is_not_the_rank() {
    for kind in KINDS {
        let job = &Job::new(kind);
        let waiting = [0, 1, 3].map(|rank| job.start(rank));
        // The rank ends before rank 0 has checked the proof, and after it has answered.
        for answered in [false, true] {
            let mut rank = job.raw(2);
            let (mut stream, mut said) = challenged(&mut rank, &job.address);
            if answered {
                stream.write_all(&said).unwrap();
                assert!(hear(&mut rank, &stream).unwrap_err().contains("Accepted"));
                said.clear();
            }
            said.extend(frame::encode(21, &[]));
            stream.write_all(&said).unwrap();
            stream.read_to_end(&mut Vec::new()).unwrap();
        }
        let mut all = vec![job.start(2).wait().unwrap()];
        all.extend(waiting.map(|rank| rank.wait().unwrap()));
        in_threads(0..4, |i| all[i].barrier().unwrap());
    }
}
