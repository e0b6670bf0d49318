//! The ranks that set up collectives, and what they agree on.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use mscclpp::{Bootstrap, Communicator, Gpu};
use sha2::{Digest, Sha256};

use crate::{Error, Result, handle::MAX_RANKS};

/// This build of what ranks must have alike: headers and kernels, and this crate, which lays out the scratch and chooses. Nobody
/// counts it up: it is made of the bytes of the sources.
const BUILD: u64 = mscclpp_kernels::FINGERPRINT ^ sources().rotate_left(1);

const fn sources() -> u64 {
    match u64::from_str_radix(env!("MSCCLPP_COLLECTIVES_SOURCES"), 10) {
        Ok(number) => number,
        Err(_) => panic!("the build script writes a number"),
    }
}

/// The ranks that take part, and this one's number among them. What they tell each other, they tell in one order, by messages of
/// one tag: one thread at a time.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    comm: Communicator,
    pub(crate) ranks: Vec<usize>,
    pub(crate) rank: usize,
    pub(crate) tag: u32,
    /// A number that no other group with the same first rank has.
    number: u64,
}

/// The purpose of messages between ranks that have met. Each purpose has tags of its own, so that two threads may
/// follow two of them.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    /// Who is in which part.
    Split,
    /// The set-up of the parts of a split: each split has another tag.
    Part(u64),
    Register,
    /// The calls that ranks have made.
    Calls,
}

impl Group {
    pub(crate) fn new(comm: &Communicator, ranks: Option<Vec<usize>>, tag: u32) -> Result<Self> {
        let (own, all) = (comm.bootstrap().rank(), comm.bootstrap().n_ranks());
        let ranks = ranks.unwrap_or_else(|| (0..all).collect());
        let refused = |why: String| Err(Error::InvalidArgument(why));
        if let Some(unknown) = ranks.iter().find(|rank| **rank >= all) {
            return refused(format!("there is no rank {unknown} in a job of {all}"));
        }
        if let Some(twice) = ranks.iter().enumerate().find(|(i, rank)| ranks[..*i].contains(rank)) {
            return refused(format!("rank {} is named twice in {ranks:?}", twice.1));
        }
        let Some(rank) = ranks.iter().position(|rank| *rank == own) else {
            return refused(format!("rank {own} is not among the ranks {ranks:?} that it gives"));
        };
        Ok(Self { comm: comm.clone(), ranks, rank, tag, number: 0 })
    }

    /// The first thing that ranks tell each other: which build they are. Blocks.
    ///
    /// # Errors
    /// [`Error::Differ`] on all ranks if they are of different builds.
    pub(crate) fn meet(self) -> Result<Self> {
        self.meet_as(BUILD)
    }

    fn meet_as(mut self, build: u64) -> Result<Self> {
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

    /// The same ranks, with the tag that messages of `purpose` have. All ranks find the same tag, and the groups of a rank and of
    /// a purpose have different ones, as far as 31 bits of a digest differ.
    pub(crate) fn telling(&self, purpose: Purpose) -> Self {
        let (kind, split) = match purpose {
            Purpose::Split => (0, 0),
            Purpose::Part(split) => (1, split),
            Purpose::Register => (2, 0),
            Purpose::Calls => (3, 0),
        };
        let mut digest = Sha256::new();
        for word in [kind, split, self.ranks[0] as u64, self.number] {
            digest.update(word.to_le_bytes());
        }
        let digest = digest.finalize();
        let tag = u32::from_le_bytes(std::array::from_fn(|i| digest[i])) | TAGS;
        Self { tag, ..self.clone() }
    }

    pub(crate) fn bootstrap(&self) -> &Arc<dyn Bootstrap> {
        self.comm.bootstrap()
    }

    /// Checks that they can all be on one node.
    pub(crate) fn check_size(&self) -> Result<()> {
        if self.ranks.len() > MAX_RANKS {
            let ranks = self.ranks.len();
            return Err(Error::InvalidArgument(format!(
                "{ranks} ranks; {MAX_RANKS} are the most on one node"
            )));
        }
        Ok(())
    }

    /// The numbers of the others in the group.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, ranks) = (self.rank, self.ranks.len());
        (0..ranks).filter(move |r| *r != rank)
    }

    /// The identity of each rank's device. Blocks: all ranks call it.
    pub(crate) fn devices(&self, gpu: &Gpu) -> Result<Vec<[u8; 16]>> {
        let uuid = u128::from_le_bytes(gpu.properties().uuid);
        let all = self.all_gather([uuid as u64, (uuid >> 64) as u64])?;
        let uuid = |[low, high]: [u64; 2]| (u128::from(high) << 64 | u128::from(low)).to_le_bytes();
        Ok(all.into_iter().map(uuid).collect())
    }

    /// One of the ranks `of` whose device's memory this rank's device is known not to reach. `devices` are those of all ranks.
    pub(crate) fn unreached(&self, gpu: &Gpu, devices: &[[u8; 16]], of: &[usize]) -> Result<Option<usize>> {
        for r in of.iter().copied().filter(|r| *r != self.rank) {
            // Of a device that this process does not see, nothing is known.
            if gpu.peer_access_by_uuid(&devices[r])?.is_some_and(|access| !access.reachable) {
                return Ok(Some(r));
            }
        }
        Ok(None)
    }

    /// The ranks of this node, `here`, that share a device, if this process sees devices that no rank of the node has. They
    /// have their numbers in the job.
    pub(crate) fn sharing(&self, devices: &[[u8; 16]], here: &[usize], seen: usize) -> Vec<usize> {
        let of = |r: &usize| here.iter().filter(|other| devices[**other] == devices[*r]).count();
        let distinct: HashSet<_> = here.iter().map(|r| devices[*r]).collect();
        if seen <= distinct.len() {
            return Vec::new();
        }
        here.iter().filter(|r| of(r) > 1).map(|r| self.ranks[*r]).collect()
    }

    /// The lowest compute capability of the ranks' devices, if all have one, and the fewest multiprocessors.
    pub(crate) fn least_device(&self, gpu: &Gpu) -> Result<(Option<(u32, u32)>, u32)> {
        let properties = gpu.properties();
        let (major, minor) = properties.compute_capability.unwrap_or_default();
        let own = [major, minor, properties.multiprocessors].map(u64::from);
        let (mut capability, mut multiprocessors) = ((major, minor), properties.multiprocessors);
        for (r, words) in self.all_gather(own)?.into_iter().enumerate() {
            let [major, minor, theirs] = words.map(|word| self.u32_of(r, word));
            capability = capability.min((major?, minor?));
            multiprocessors = multiprocessors.min(theirs?);
        }
        Ok(((capability != (0, 0)).then_some(capability), multiprocessors))
    }

    /// A word of rank `r` that is a number of 32 bits.
    pub(crate) fn u32_of(&self, r: usize, word: u64) -> Result<u32> {
        let too_large =
            |_| self.malformed(r, format!("a number in it is {word}, and {} is the largest", u32::MAX));
        u32::try_from(word).map_err(too_large)
    }

    /// Checks that all ranks give the same values.
    pub(crate) fn agree(&self, values: &[(&'static str, u64)]) -> Result<()> {
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
            rank: self.ranks[self.rank],
            other: self.ranks[other],
            what,
            ours: text(&all[self.rank]),
            theirs: text(&all[other]),
        })
    }

    /// Returns `own` if all ranks have theirs; else this rank's error, or that another rank has one. Nobody returns
    /// before all have called.
    pub(crate) fn all_have<T>(&self, what: &str, own: Result<T>) -> Result<T> {
        let all = self.all_say([own.is_ok()]);
        // Its own error says more than that of telling it.
        let own = own?;
        match all?.iter().position(|[has]| !has) {
            None => Ok(own),
            Some(r) => Err(Error::InvalidArgument(format!(
                "{what}: rank {} could not, and has an error that says why",
                self.ranks[r]
            ))),
        }
    }

    /// Whether it holds for all ranks. Nobody returns before all have called.
    pub(crate) fn all(&self, holds: bool) -> Result<bool> {
        Ok(self.all_say([holds])?.iter().all(|[holds]| *holds))
    }

    /// The answers of each rank. Nobody returns before all have called.
    ///
    /// # Errors
    /// [`Error::Malformed`] if a rank sends a word that is neither 0 nor 1; those of telling.
    pub(crate) fn all_say<const N: usize>(&self, own: [bool; N]) -> Result<Vec<[bool; N]>> {
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

    use mscclpp::{Context, ContextExt, ErrorKind, LocalBootstrap, Platform};

    use super::*;

    const TAG: u32 = 5;

    fn comms(n: usize) -> Vec<Communicator> {
        let comm = |bootstrap| Communicator::with_context(Arc::new(bootstrap), Context::on(Platform::Sim));
        LocalBootstrap::group(n).into_iter().map(comm).collect()
    }

    /// Returns the result of `what` on each rank with its group.
    fn together<T: Send>(comms: &[Communicator], what: impl Fn(Group) -> T + Sync) -> Vec<T> {
        thread::scope(|scope| {
            let what = &what;
            let run = |comm| scope.spawn(move || what(Group::new(comm, None, TAG).expect("a group")));
            let threads: Vec<_> = comms.iter().map(run).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        })
    }

    #[test]
    fn ranks_of_different_builds_have_an_error_that_names_both_on_all_ranks() {
        for other in 0..3 {
            let met = together(&comms(3), |group| {
                let build = if group.rank == other { 0xbeef } else { BUILD };
                (group.rank, group.meet_as(build).expect_err("they differ"))
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
        let met = together(&comms(3), |group| group.meet().expect("they are of one build").number);
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
        let group = Group::new(&comms[0], None, TAG).expect("a group");
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
    fn ranks_that_share_a_device_while_others_are_free_are_named() {
        let comms = comms(4);
        let group = Group::new(&comms[0], None, TAG).expect("a group");
        let devices = [0, 1, 0, 2].map(|device| [device; 16]);
        assert_eq!(group.sharing(&devices, &[0, 1, 2, 3], 4), [0, 2]);
        assert!(group.sharing(&devices, &[0, 1, 2, 3], 3).is_empty(), "all devices are taken");
        assert!(group.sharing(&devices, &[0, 1, 3], 4).is_empty(), "rank 2 is on another node");
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
            let groups = [(); 2].map(|()| group.clone().meet().expect("one build"));
            let purposes =
                [Purpose::Split, Purpose::Register, Purpose::Calls, Purpose::Part(0), Purpose::Part(1)];
            groups
                .iter()
                .flat_map(|group| purposes.map(|purpose| group.telling(purpose).tag))
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
