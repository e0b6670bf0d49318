//! The ranks that set up an engine, and what they agree on.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use mscclpp_bootstrap::Bootstrap;
use sha2::{Digest, Sha256};

use crate::{Communicator, Error, Result};

/// The ranks that set up an engine together, and this one's number among them.
///
/// The ranks tell each other words of 64 bits, in one order, by messages of one tag: one thread at a time. A message that is
/// not what was expected, or a value that differs, is an error on all ranks, which names the rank.
#[derive(Debug, Clone)]
pub struct Group {
    comm: Communicator,
    /// The name of the engine, for errors: `collectives`.
    pub(super) engine: &'static str,
    pub(super) ranks: Vec<usize>,
    pub(super) rank: usize,
    pub(super) tag: u32,
    /// A number that no other group with the same first rank has.
    number: u64,
}

impl Group {
    /// Meets the other ranks. All of them make this call, with the same `ranks` of the communicator, of which this is one, in the
    /// order in which they are numbered: all, if none are given. Blocks until all do.
    ///
    /// `engine` names what is set up in errors, such as `collectives`. `build` is a number of what the ranks must have alike
    /// before they can agree on anything: the version of the engine, or a digest of its sources. `tag` is that of the
    /// messages, below 2^31; groups that have ranks in common and meet at the same time have different ones.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for ranks that do not exist or are named twice, without this one among them;
    /// [`Error::Differ`] on all ranks if they are of different builds; [`Error::Bootstrap`] if a rank is lost or has left.
    pub fn meet(
        comm: &Communicator,
        engine: &'static str,
        build: u64,
        ranks: Option<Vec<usize>>,
        tag: u32,
    ) -> Result<Self> {
        Self::new(comm, engine, ranks, tag)?.with_build(build)
    }

    fn new(comm: &Communicator, engine: &'static str, ranks: Option<Vec<usize>>, tag: u32) -> Result<Self> {
        let (own, all) = (comm.bootstrap().rank(), comm.bootstrap().n_ranks());
        let ranks = ranks.unwrap_or_else(|| (0..all).collect());
        comm.check_peers(&ranks).map_err(Error::InvalidArgument)?;
        let Some(rank) = ranks.iter().position(|rank| *rank == own) else {
            return Err(Error::InvalidArgument(format!(
                "rank {own} is not among the ranks {ranks:?} that it gives"
            )));
        };
        Ok(Self { comm: comm.clone(), engine, ranks, rank, tag, number: 0 })
    }

    /// Tells the others this rank's build, and learns the number of the group.
    fn with_build(mut self, build: u64) -> Result<Self> {
        /// The groups of which a rank of this process was the first.
        static GROUPS: AtomicU64 = AtomicU64::new(0);
        let all = self.all_gather([build, GROUPS.fetch_add(1, Ordering::Relaxed)])?;
        self.number = all[0][1];
        let builds: Vec<_> = all.iter().map(|[build, _]| *build).collect();
        self.expect_same("builds of the library, of which all need the same", &builds, |build| {
            format!("{build:016x}")
        })?;
        Ok(self)
    }

    /// The same ranks with another tag, so that two threads may tell the others something at the same time. All ranks find
    /// the same tag. Groups with the same first rank, purposes, and numbers of one purpose have different ones, as far as 31
    /// bits of a digest differ. They are 2^31 or more.
    #[must_use]
    pub fn telling(&self, purpose: u64, number: u64) -> Self {
        let mut digest = Sha256::new();
        for word in [purpose, number, self.ranks[0] as u64, self.number] {
            digest.update(word.to_le_bytes());
        }
        let digest = digest.finalize();
        let tag = u32::from_le_bytes(std::array::from_fn(|i| digest[i])) | TAGS;
        Self { tag, ..self.clone() }
    }

    /// The communicator whose ranks they are.
    #[must_use]
    pub fn comm(&self) -> &Communicator {
        &self.comm
    }

    /// This rank's number in the group.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The ranks of the communicator, in the order of the group.
    #[must_use]
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// The tag of the group's messages.
    #[must_use]
    pub fn tag(&self) -> u32 {
        self.tag
    }

    pub(super) fn bootstrap(&self) -> &Arc<dyn Bootstrap> {
        self.comm.bootstrap()
    }

    /// The numbers of the others in the group, ascending.
    pub fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, ranks) = (self.rank, self.ranks.len());
        (0..ranks).filter(move |r| *r != rank)
    }

    /// A word of rank `r` as a number of 32 bits.
    ///
    /// # Errors
    /// [`Error::Malformed`] if it is none.
    pub fn u32_of(&self, r: usize, word: u64) -> Result<u32> {
        let too_large =
            |_| self.malformed(r, format!("a number in it is {word}, and {} is the largest", u32::MAX));
        u32::try_from(word).map_err(too_large)
    }

    /// Checks that all ranks give the same values, each of which has a name for the error. Blocks until all have called.
    ///
    /// # Errors
    /// [`Error::Differ`] for the first that differs; the errors of [`Self::all_gather`].
    pub fn agree(&self, values: &[(&'static str, u64)]) -> Result<()> {
        let ours: Vec<u64> = values.iter().map(|(_, value)| *value).collect();
        let all = self.all_gather_list(&ours, Some(values.len()))?;
        for (i, (what, _)) in values.iter().enumerate() {
            let of_each: Vec<_> = all.iter().map(|words| words[i]).collect();
            self.expect_same(what, &of_each, u64::to_string)?;
        }
        Ok(())
    }

    fn expect_same(&self, what: &'static str, all: &[u64], text: impl Fn(&u64) -> String) -> Result<()> {
        let Some(other) = all.iter().position(|theirs| *theirs != all[self.rank]) else { return Ok(()) };
        Err(Error::Differ {
            engine: self.engine,
            rank: self.ranks[self.rank],
            other: self.ranks[other],
            what,
            ours: text(&all[self.rank]),
            theirs: text(&all[other]),
        })
    }

    /// Returns `own` if all ranks have theirs; else this rank's error, or that another rank has one. Nobody returns
    /// before all have called. `what` names the call in the error.
    ///
    /// # Errors
    /// This rank's own; [`Error::InvalidArgument`] that names another rank; the errors of [`Self::all_say`].
    pub fn all_have<T, E: From<Error>>(&self, what: &str, own: Result<T, E>) -> Result<T, E> {
        let all = self.all_say([own.is_ok()]);
        // Its own error says more than that of telling it.
        let own = own?;
        match all?.iter().position(|[has]| !has) {
            None => Ok(own),
            Some(r) => {
                let other = self.ranks[r];
                let problem = format!("{what}: rank {other} could not, and has an error that says why");
                Err(Error::InvalidArgument(problem).into())
            }
        }
    }

    /// Whether it holds for all ranks. Nobody returns before all have called.
    ///
    /// # Errors
    /// The same as of [`Self::all_say`].
    pub fn all(&self, holds: bool) -> Result<bool> {
        Ok(self.all_say([holds])?.iter().all(|[holds]| *holds))
    }

    /// The answers of each rank. Nobody returns before all have called.
    ///
    /// # Errors
    /// [`Error::Malformed`] if a rank sends a word that is neither 0 nor 1; the errors of [`Self::all_gather`].
    pub fn all_say<const N: usize>(&self, own: [bool; N]) -> Result<Vec<[bool; N]>> {
        let all = self.all_gather(own.map(u64::from))?;
        let answers = |(r, words): (usize, [u64; N])| match words.iter().find(|word| **word > 1) {
            None => Ok(words.map(|word| word == 1)),
            Some(word) => {
                Err(self.malformed(r, format!("an answer in it is {word}, and 0 or 1 was expected")))
            }
        };
        all.into_iter().enumerate().map(answers).collect()
    }
}

/// The bit that tags of ranks that have met have, so that they are none of the small ones that programs have for their messages.
const TAGS: u32 = 1 << 31;

#[cfg(all(test, feature = "cuda-ipc"))]
mod tests {
    use std::thread;

    use mscclpp_gpu::Platform;

    use crate::{Context, ContextExt, ErrorKind, LocalBootstrap};

    use super::*;

    const TAG: u32 = 5;
    const ENGINE: &str = "experts";
    const BUILD: u64 = 0xb1d;

    fn comms(n: usize) -> Vec<Communicator> {
        let comm = |bootstrap| Communicator::with_context(Arc::new(bootstrap), Context::on(Platform::Sim));
        LocalBootstrap::group(n).into_iter().map(comm).collect()
    }

    /// Returns the result of `what` on each rank with its group.
    fn together<T: Send>(comms: &[Communicator], what: impl Fn(Group) -> T + Sync) -> Vec<T> {
        thread::scope(|scope| {
            let what = &what;
            let run = |comm| scope.spawn(move || what(Group::new(comm, ENGINE, None, TAG).expect("a group")));
            let threads: Vec<_> = comms.iter().map(run).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        })
    }

    #[test]
    fn ranks_of_different_builds_have_an_error_that_names_both_on_all_ranks() {
        for other in 0..3 {
            let met = together(&comms(3), |group| {
                let build = if group.rank == other { 0xbeef } else { BUILD };
                (group.rank, group.with_build(build).expect_err("they differ"))
            });
            for (rank, error) in met {
                let Error::Differ { other: named, ours, theirs, .. } = &error else { panic!("{error:?}") };
                let builds = [format!("{BUILD:016x}"), "000000000000beef".to_owned()];
                let own = usize::from(rank == other);
                assert_eq!([ours, theirs], [&builds[own], &builds[1 - own]]);
                assert!(rank == other || *named == other, "{error}");
                assert!(error.to_string().contains("different builds of the library"), "{error}");
            }
        }
        let met = together(&comms(3), |group| group.with_build(BUILD).expect("they are of one build").number);
        assert_eq!(met, [met[0]; 3]);
    }

    #[test]
    fn a_short_word_from_outside_is_an_error_on_all_ranks_that_says_whose_and_how_long() {
        let comms = comms(3);
        for (short, problem) in [
            (&b"mscw\x01\x01\0\0\x08\0\0\0\0\0\0\0\x07\0\0"[..], "it has 19 bytes, and 24 were expected"),
            (
                &b"mscw\x01\x01\0\0\x08\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0"[..],
                "it carries 8 bytes, and 16 were expected",
            ),
            (&b""[..], "it has 0 bytes, and 16 or more were expected"),
        ] {
            let errors = together(&comms, |group| match group.rank {
                1 => {
                    group.bootstrap().send(short, 0, TAG).expect("a message");
                    group.bootstrap().recv(0, TAG).expect("the answer");
                    None
                }
                _ => Some(group.all_gather([1, 2]).expect_err("it is short")),
            });
            for error in errors.into_iter().flatten() {
                assert_eq!(error.kind(), ErrorKind::Remote);
                let text = error.to_string();
                assert!(text.contains("rank 1 sent") && text.contains(problem), "{text}");
            }
        }
        // What the first rank sends is read with bounds, too.
        let errors = together(&comms, |group| {
            if group.rank == 0 {
                (1..3).for_each(|r| drop(group.bootstrap().recv(r, TAG)));
                (1..3).for_each(|r| group.bootstrap().send(&[0xff; 50], r, TAG).expect("a message"));
                return None;
            }
            Some(group.all_gather([1]).expect_err("it is nothing").to_string())
        });
        for text in errors.into_iter().flatten() {
            assert!(text.contains("rank 0 sent") && text.contains("begins with [ff, ff, ff, ff]"), "{text}");
        }
    }

    #[test]
    fn words_that_are_no_answers_and_no_numbers_of_32_bits_are_refused() {
        let errors = together(&comms(2), |group| {
            if group.rank == 0 {
                group.all_gather([2]).expect("words");
                return None;
            }
            Some(group.all(true).expect_err("2 is no answer").to_string())
        });
        let text = errors[1].as_ref().expect("an error");
        assert!(text.contains("rank 0 sent") && text.contains("an answer in it is 2"), "{text}");
        let comms = comms(1);
        let group = Group::new(&comms[0], ENGINE, None, TAG).expect("a group");
        assert_eq!(group.u32_of(0, 7).expect("a number"), 7);
        let text = group.u32_of(0, 1 << 32).expect_err("it is too large").to_string();
        assert!(text.contains("4294967296, and 4294967295 is the largest"), "{text}");
    }

    /// Three of the ranks are played, with no message to or from one another.
    #[test]
    fn ranks_agree_with_two_messages_for_each_but_the_first() {
        let comms = comms(5);
        let found = together(&comms, |group| {
            if group.rank > 1 {
                let own = group.rank as u64;
                let bootstrap = group.bootstrap();
                let mut message = b"mscw\x01\x01\0\0\x08\0\0\0\0\0\0\0".to_vec();
                message.extend((10 * own).to_le_bytes());
                bootstrap.send(&message, 0, TAG).expect("a message");
                bootstrap.recv(0, TAG).expect("the answer");
                return Vec::new();
            }
            group.all_gather([10 * group.rank as u64]).expect("words")
        });
        assert_eq!(found[..2], [(); 2].map(|()| vec![[0], [10], [20], [30], [40]]));
    }

    #[test]
    fn words_for_one_rank_wait_until_they_are_taken() {
        let comms = comms(3);
        let groups = [0, 1, 2].map(|r: usize| Group::new(&comms[r], ENGINE, None, TAG).expect("a group"));
        assert_eq!(groups[1].told_by(0).expect("it lives"), None);
        for words in [&[1, u64::MAX][..], &[]] {
            groups[0].tell(1, words).expect("it lives");
        }
        assert_eq!(groups[1].told_by(0).expect("it lives"), Some(vec![1, u64::MAX]));
        assert_eq!(groups[1].told_by(0).expect("it lives"), Some(vec![]));
        assert_eq!(groups[1].told_by(0).expect("it lives"), None);
        assert_eq!(groups[2].told_by(0).expect("it lives"), None);
        groups[0].bootstrap().send(b"no words", 2, TAG).expect("it lives");
        let error = groups[2].told_by(0).expect_err("tell did not send it");
        assert!(matches!(error, Error::Malformed { engine: ENGINE, rank: 2, other: 0, .. }), "{error}");
    }

    #[test]
    fn a_rank_that_has_left_is_named_to_all() {
        let mut comms = comms(4);
        drop(comms.remove(2));
        let errors = together(&comms, |group| group.all_gather([0]).expect_err("one has left").to_string());
        for text in errors {
            assert!(text.contains("rank 2"), "{text}");
        }
    }

    #[test]
    fn groups_and_purposes_have_tags_of_their_own_that_all_ranks_find() {
        let found = together(&comms(3), |group| {
            let groups = [(); 2].map(|()| group.clone().with_build(BUILD).expect("one build"));
            let purposes = [(0, 0), (2, 0), (3, 0), (1, 0), (1, 1)];
            groups
                .iter()
                .flat_map(|group| purposes.map(|(purpose, number)| group.telling(purpose, number).tag))
                .collect::<Vec<_>>()
        });
        assert_eq!(found, [found[0].clone(), found[0].clone(), found[0].clone()]);
        let mut tags = found[0].clone();
        tags.sort_unstable();
        tags.dedup();
        assert_eq!(tags.len(), 10);
        assert!(tags.iter().all(|tag| *tag >= TAGS));
    }
}
