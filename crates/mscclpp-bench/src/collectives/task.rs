//! The task of each side of a row: the numbers, their place in its memory, and the expected result.

use clap::ValueEnum;
use mscclpp_collectives::Request;

use super::{Numbers, What};
use crate::{
    data::{Destination, GUARD, Memory},
    prelude::*,
};

/// The place of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ResultPlace {
    /// Separate memory.
    Out,
    /// The memory of the numbers that were sent.
    In,
}

/// The alignment of the numbers in a memory. Calls in place begin at this offset, and no other numbers come before.
const PAGE: u64 = 4096;

/// One collective of one size, for one rank.
pub(crate) struct Task {
    pub(crate) what: What,
    pub(crate) numbers: Numbers,
    pub(crate) place: ResultPlace,
    pub(crate) ranks: usize,
    /// The size as nccl-tests count it.
    pub(crate) bytes: u64,
    /// This rank's numbers, their offset in the memory, and that of the result.
    given: Vec<u8>,
    send: u64,
    recv: u64,
    /// The bytes that are compared, and their offset: the result, and in place also the bytes beside it that must not change.
    expected: Vec<u8>,
    compared: u64,
}

impl Task {
    /// Makes a task of random numbers, which differ between the ranks. All ranks make this call.
    pub(crate) fn random(
        what: What,
        numbers: Numbers,
        place: ResultPlace,
        bytes: u64,
        ranks: &Ranks,
    ) -> Result<Self> {
        let given = ranks.random_bytes_of_each(what.given(bytes, ranks.count() as u64))?;
        let given: Vec<_> = given.into_iter().map(|bytes| numbers.moderate(bytes)).collect();
        Ok(Self::new(what, numbers, place, bytes, &given, ranks.rank))
    }

    /// Makes a task. `given` has the numbers of all ranks.
    fn new(
        what: What,
        numbers: Numbers,
        place: ResultPlace,
        bytes: u64,
        given: &[Vec<u8>],
        rank: usize,
    ) -> Self {
        let result = what.result(given, rank, numbers);
        let (ranks, own) = (given.len(), &given[rank]);
        let part_of = |of: usize| (of * rank / ranks) as u64;
        let (send, recv, expected, compared) = match (place, what) {
            (ResultPlace::Out, _) => {
                let recv = (own.len() as u64).next_multiple_of(PAGE) + PAGE;
                (0, recv, result, recv)
            }
            (ResultPlace::In, What::AllGather) => (PAGE + part_of(result.len()), PAGE, result, PAGE),
            (ResultPlace::In, What::ReduceScatter) => {
                let begin = part_of(own.len());
                let mut all = own.clone();
                all[begin as usize..][..result.len()].copy_from_slice(&result);
                (PAGE, PAGE + begin, all, PAGE)
            }
            (ResultPlace::In, _) => (PAGE, PAGE, result, PAGE),
        };
        Self { what, numbers, place, ranks, bytes, given: own.clone(), send, recv, expected, compared }
    }

    /// The bytes of memory that a task of this size needs.
    pub(crate) fn room(what: What, place: ResultPlace, bytes: u64, ranks: u64) -> u64 {
        let room = match place {
            ResultPlace::Out => {
                what.given(bytes, ranks).next_multiple_of(PAGE) + PAGE + what.got(bytes, ranks) + GUARD
            }
            ResultPlace::In => PAGE + bytes + GUARD,
        };
        room.next_multiple_of(PAGE)
    }

    /// Writes this rank's numbers into a memory, for the first time.
    pub(crate) fn load(&self, memory: &dyn Memory) -> Result<()> {
        memory.write(self.send, &self.given)
    }

    /// Prepares a loaded memory for a call and the comparison: nothing of the result is there afterwards.
    pub(crate) fn prepare(&self, memory: &dyn Memory) -> Result<()> {
        self.destination(memory).poison(self.compared_bytes())?;
        if self.place == ResultPlace::In { self.load(memory) } else { Ok(()) }
    }

    /// Whether a memory has the expected bytes, compared by `like`.
    pub(crate) fn is_done(&self, memory: &dyn Memory, like: impl Fn(&[u8], &[u8]) -> bool) -> Result<bool> {
        self.destination(memory).holds_like(&self.expected, like)
    }

    /// Makes a byte of the result wrong.
    pub(crate) fn spoil(&self, memory: &dyn Memory) -> Result<()> {
        self.destination(memory).spoil(self.compared_bytes())
    }

    /// The request of the call, in a memory that begins at `base`.
    pub(crate) fn request(&self, base: DevicePtr) -> Request<'static> {
        Request {
            kind: self.what.kind(),
            send: base.add(self.send),
            recv: base.add(self.recv),
            count: self.what.counted(self.bytes, self.ranks as u64) / self.numbers.size(),
            data_type: self.numbers.data_type(),
        }
    }

    fn destination<'a>(&self, memory: &'a dyn Memory) -> Destination<'a> {
        Destination { memory, offset: self.compared }
    }

    fn compared_bytes(&self) -> u64 {
        self.expected.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::random_bytes;

    /// Carries a request out in the plainest way.
    fn carry_out(task: &Task, given: &[Vec<u8>], rank: usize, memory: &dyn Memory) -> Result<()> {
        let result = task.what.result(given, rank, task.numbers);
        memory.write(task.recv, &result)
    }

    #[test]
    fn every_task_stays_in_its_room_and_is_checked() -> Result<()> {
        let gpu = Platform::Sim.gpu(0)?;
        for what in [What::AllReduce, What::AllGather, What::ReduceScatter, What::AllToAll] {
            for place in [ResultPlace::Out, ResultPlace::In] {
                for (ranks, rank, bytes) in [(1, 0, 40), (2, 0, 8192), (2, 1, 9000), (4, 3, 48)] {
                    let len = what.given(bytes, ranks as u64) as usize;
                    let given: Vec<_> = (0..ranks)
                        .map(|rank| Numbers::F16.moderate(random_bytes(rank as u64 + 1, len)))
                        .collect();
                    let memory = gpu.allocate(Task::room(what, place, bytes, ranks as u64))?;
                    let task = Task::new(what, Numbers::F16, place, bytes, &given, rank);
                    let done = || task.is_done(&memory, |found, expected| found == expected);
                    task.load(&memory)?;
                    task.prepare(&memory)?;
                    let nothing_to_do = place == ResultPlace::In && ranks == 1;
                    assert_eq!(done()?, nothing_to_do, "{what:?} {place:?} {ranks}");
                    carry_out(&task, &given, rank, &memory)?;
                    assert!(done()?, "{what:?} {place:?} {rank} of {ranks}, {bytes}");
                    // The call finds the given numbers each time the memory is prepared.
                    task.prepare(&memory)?;
                    let mut sent = vec![0; len];
                    memory.read(task.send, &mut sent)?;
                    assert_eq!(sent, given[rank]);
                    carry_out(&task, &given, rank, &memory)?;
                    task.spoil(&memory)?;
                    assert!(!done()?);
                }
            }
        }
        Ok(())
    }

    #[test]
    fn places_are_those_that_calls_in_place_have() {
        let base = DevicePtr(1 << 20);
        let request = |what: What, place, rank| {
            let given = vec![vec![0; what.given(64, 2) as usize]; 2];
            Task::new(what, Numbers::F32, place, 64, &given, rank).request(base)
        };
        let gather = request(What::AllGather, ResultPlace::In, 1);
        assert_eq!((gather.send, gather.count), (gather.recv.add(32), 8));
        let scatter = request(What::ReduceScatter, ResultPlace::In, 1);
        assert_eq!((scatter.recv, scatter.count), (scatter.send.add(32), 8));
        let reduce = request(What::AllReduce, ResultPlace::In, 1);
        assert_eq!((reduce.recv, reduce.count), (reduce.send, 16));
        assert_ne!(
            request(What::AllToAll, ResultPlace::Out, 0).recv,
            request(What::AllToAll, ResultPlace::Out, 0).send
        );
    }
}
