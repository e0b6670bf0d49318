//! The parts that the tests share: ranks as threads, and a selector that does what a test says.

#![allow(dead_code, reason = "the programs whose ranks are processes use a part of this")]

pub(crate) mod by_nodes;
pub(crate) mod cases;
pub(crate) mod pairs;
pub(crate) mod reference;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use mscclpp::{ErrorKind, gpu::Graph, prelude::*};
use mscclpp_collectives::{
    Collectives, CollectivesBuilder, DeviceSlice, Element, Query, ReduceOp, Selection, Selector, Tuned,
};
use mscclpp_test_support::{LIMIT, Turn, in_threads, job::Role};

/// GPUs where there are some, else simulated devices.
pub(crate) fn platform() -> Platform {
    Platform::detect_or_sim().expect("a usable platform")
}

/// Makes a communicator of a job of processes, in a child.
pub(crate) fn communicator_of(role: &Role) -> mscclpp::Result<Communicator> {
    let id = role.unique_id(|| TcpBootstrap::create_unique_id().map(|id| id.to_hex()))?;
    let bootstrap = TcpBootstrap::new(role.rank, role.n_ranks, id.parse::<UniqueId>()?, LIMIT)?;
    Ok(Communicator::with_context(Arc::new(bootstrap), Context::on(platform())))
}

/// A graph of three sums of `numbers`, one after the other in place.
pub(crate) fn three_sums(
    collectives: &Collectives,
    numbers: &DeviceSlice<u64>,
    stream: &Stream,
) -> mscclpp_collectives::Result<Graph> {
    stream.begin_capture()?;
    let captured = (0..3).try_for_each(|_| collectives.all_reduce(numbers, numbers, ReduceOp::Sum, stream));
    let graph = stream.end_capture()?;
    captured.map(|()| graph)
}

/// Calls of two communicators of all ranks and of one of some, at the same time on streams of their own. Returns the last numbers
/// that came: the largest, the least, and the sum of sums.
pub(crate) fn three_at_once(
    gpu: &Gpu,
    [all, again]: [&Collectives; 2],
    some: Option<&Collectives>,
    data: &[DeviceSlice<u32>; 3],
    times: usize,
) -> [u32; 3] {
    let streams = [(); 3].map(|()| gpu.stream().unwrap());
    for _ in 0..times {
        all.all_reduce(&data[0], &data[0], ReduceOp::Max, &streams[0]).unwrap();
        again.all_reduce(&data[1], &data[1], ReduceOp::Min, &streams[1]).unwrap();
        if let Some(some) = some {
            some.all_reduce(&data[2], &data[2], ReduceOp::Sum, &streams[2]).unwrap();
        }
    }
    streams.iter().for_each(|stream| all.synchronize(stream).unwrap());
    data.each_ref().map(|slice| *slice.read().unwrap().last().expect("a number"))
}

/// Sends a word from rank 0 to rank 2: no other rank calls.
pub(crate) fn one_message(gpu: &Gpu, collectives: &Collectives, stream: &Stream) {
    let rank = collectives.rank();
    let word = slice(gpu, &[rank as u64]);
    match rank {
        0 => collectives.send(&word, 2, stream).unwrap(),
        2 => collectives.recv(&word, 0, stream).unwrap(),
        _ => {}
    }
    collectives.synchronize(stream).unwrap();
    assert_eq!(word.read().unwrap(), [[0, 1, 0][rank]]);
}

/// The device of a rank.
pub(crate) fn device_of(rank: usize) -> usize {
    rank % platform().device_count().expect("devices")
}

/// The number of rounds: on simulated devices, which are slow, only `n`.
pub(crate) fn rounds(n: u64) -> u64 {
    if platform() == Platform::Sim { n } else { 20 * n }
}

/// Takes the turn of a test on the devices.
pub(crate) fn turn() -> Turn {
    Turn::take(platform() != Platform::Sim)
}

/// Runs `n` ranks as threads of this process, each on a device of its own as far as there are some.
pub(crate) fn ranks(n: usize, rank: impl Fn(&Communicator, &Gpu) + Sync) {
    in_turn(turn(), n, rank);
}

/// Runs ranks like [`ranks`] while no other test uses the devices, so that a test can look at their free memory.
pub(crate) fn ranks_alone(n: usize, rank: impl Fn(&Communicator, &Gpu) + Sync) {
    in_turn(Turn::take(true), n, rank);
}

fn in_turn(_turn: Turn, n: usize, rank: impl Fn(&Communicator, &Gpu) + Sync) {
    let devices = platform().device_count().expect("devices");
    in_threads(LocalBootstrap::group(n).into_iter().enumerate(), |(r, bootstrap)| {
        let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(platform()));
        let gpu = comm.context().gpu(r % devices).expect("a device");
        // A rank that panics must not leave the others waiting.
        let abort = AbortOnPanic(comm.clone());
        rank(&comm, &gpu);
        // Ranks leave together, unless the test has ended the job.
        if let Err(error) = comm.bootstrap().barrier() {
            assert!(comm.bootstrap().failure().is_some(), "{error:?}");
        }
        drop(abort);
    });
}

struct AbortOnPanic(Communicator);

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort("a test failed");
        }
    }
}

/// Few blocks, so that several ranks may share a device.
pub(crate) fn builder(comm: &Communicator, gpu: &Gpu) -> CollectivesBuilder {
    Collectives::builder(comm, gpu).max_blocks(3).scratch(16 << 20)
}

/// The builder of collectives whose calls may go by [`Protocol::SimpleByBulk`], with up to two blocks.
pub(crate) fn builder_with_lanes(comm: &Communicator, gpu: &Gpu) -> CollectivesBuilder {
    builder(comm, gpu).max_blocks(8).overlap(true)
}

/// Does what it was told last.
#[derive(Debug, Clone)]
pub(crate) struct Told(Arc<Mutex<Selection>>);

impl Told {
    pub(crate) fn new(selection: Selection) -> Self {
        Self(Arc::new(Mutex::new(selection)))
    }

    pub(crate) fn tell(&self, selection: Selection) {
        *self.0.lock().expect("no panic") = selection;
    }
}

impl Selector for Told {
    fn choose(&self, _: &Query) -> Selection {
        *self.0.lock().expect("no panic")
    }
}

/// Chooses what is usual, and counts the exchanges of which it is asked.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counted(Arc<AtomicUsize>);

impl Counted {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Selector for Counted {
    fn choose(&self, query: &Query) -> Selection {
        self.0.fetch_add(1, Ordering::Relaxed);
        Tuned.choose(query)
    }
}

/// Numbers in memory of their own.
pub(crate) fn slice<T: Element>(gpu: &Gpu, numbers: &[T]) -> DeviceSlice<T> {
    let bytes = (size_of_val(numbers) as u64).max(8);
    let slice = DeviceSlice::at(&gpu.allocate(bytes).expect("memory"), 0, numbers.len()).expect("a slice");
    slice.write(numbers).expect("a write");
    slice
}

pub(crate) fn zeros<T: Element>(gpu: &Gpu, len: usize) -> DeviceSlice<T> {
    slice(gpu, &vec![T::zeroed(); len])
}

/// The words that rank `from` sends to rank `to`.
fn part(from: usize, to: usize, len: usize, round: u32) -> impl Iterator<Item = u32> {
    let mixed = round.wrapping_mul(0x9e37_79b9);
    (0..len as u32).map(move |i| (i ^ (from as u32) << 20 ^ (to as u32) << 24).wrapping_add(mixed))
}

/// The words that rank `from` sends to each of `n` ranks.
pub(crate) fn sent(from: usize, n: usize, len: usize, round: u32) -> Vec<u32> {
    (0..n).flat_map(|to| part(from, to, len, round)).collect()
}

/// The words that come to rank `to` from each of `n` ranks.
pub(crate) fn received(to: usize, n: usize, len: usize, round: u32) -> Vec<u32> {
    (0..n).flat_map(|from| part(from, to, len, round)).collect()
}

/// Rank 0 waits for calls that rank 1 does not make, until it aborts. What it had queued is not taken for its first call when
/// rank 1 makes that. Both ranks call it.
pub(crate) fn abort_ends_waits(comm: &Communicator, gpu: &Gpu, collectives: &Collectives) {
    let stream = gpu.stream().expect("a stream");
    if collectives.rank() == 0 {
        for n in 1..=3 {
            let numbers = slice(gpu, &[f64::from(n); 1000]);
            collectives.all_reduce(&numbers, &numbers, ReduceOp::Sum, &stream).unwrap();
            collectives.send(&numbers, 1, &stream).unwrap();
        }
        collectives.abort("enough");
        let error = collectives.synchronize(&stream).expect_err("it was aborted");
        assert_eq!(error.kind(), ErrorKind::Aborted, "{error:?}");
        let error = collectives.barrier(&stream).expect_err("it was aborted");
        assert!(format!("{error:?}").contains("enough"), "{error:?}");
    }
    comm.bootstrap().barrier().unwrap();
    if collectives.rank() == 1 {
        let numbers = slice(gpu, &[0.5f64; 1000]);
        collectives.all_reduce(&numbers, &numbers, ReduceOp::Sum, &stream).unwrap();
        if stream.synchronize_or_abort(Duration::from_millis(300), collectives).is_ok() {
            assert_eq!(numbers.read().unwrap(), [1.5; 1000]);
        }
    }
    comm.bootstrap().barrier().unwrap();
}
