//! An engine of a program's own, built of the public parts: each call adds up a word of every rank, for each of its threads.

use std::{thread, time::Duration};

use mscclpp::{
    ErrorKind,
    engine::{CallOrder, DeviceRoom, Group, Scratch},
    prelude::*,
};

use crate::support::{LIMIT, device_of, ranks};

/// A block reads its epoch, sends its words to all peers as packets into the half of the epoch's parity, takes theirs, and
/// counts the call. A rank writes a half again two calls later: it has taken a packet of every peer's next call by then, so
/// that peer has read all of the call before.
const KERNEL: KernelSource<'static> = KernelSource::new(
    "add_up.cu",
    r#"
    #include <mscclpp/packet_device.hpp>

    struct Handle {
      mscclpp::LL16Packet* scratch[4];
      uint32_t* status[4];
      uint64_t* epochs;
      uint32_t rank, ranks;
    };

    extern "C" __global__ void add_up(Handle engine, const uint64_t* in, uint64_t* out) {
      const uint64_t epoch = engine.epochs[blockIdx.x] + 1;
      const uint32_t flag = static_cast<uint32_t>(epoch);
      const uint64_t word = blockIdx.x * blockDim.x + threadIdx.x, words = gridDim.x * blockDim.x;
      const auto packet = [&](uint32_t at, uint32_t from) {
        return engine.scratch[at] + ((epoch & 1) * engine.ranks + from) * words + word;
      };
      for (uint32_t r = 0; r < engine.ranks; ++r) {
        if (r != engine.rank) packet(r, engine.rank)->write(in[word], flag);
      }
      uint64_t sum = in[word];
      bool came = true;
      for (uint32_t r = 0; r < engine.ranks; ++r) {
        mscclpp::LL16Payload theirs{};
        if (r != engine.rank) came &= packet(engine.rank, r)->receive(flag, theirs, -1, engine.status[r]);
        sum += theirs.x | static_cast<uint64_t>(theirs.y) << 32;
      }
      if (came) out[word] = sum;
      __syncthreads();  // all threads have read the epoch
      if (threadIdx.x == 0) engine.epochs[blockIdx.x] = epoch;
    }
    "#,
);

const THREADS: u32 = 32;
const WORDS: usize = 2 * THREADS as usize;
const BYTES: u64 = 8 * WORDS as u64;

#[derive(Clone, Copy, KernelParam)]
#[repr(C)]
struct Handle {
    scratch: [DevicePtr; 4],
    status: [DevicePtr; 4],
    epochs: DevicePtr,
    rank: u32,
    ranks: u32,
}

struct Adder {
    gpu: Gpu,
    kernel: Kernel,
    scratch: Scratch,
    epochs: DeviceBuffer,
    handle: Handle,
    blocks: u32,
    order: CallOrder,
    room: DeviceRoom,
}

impl Adder {
    fn connect(comm: &Communicator, tag: u32) -> mscclpp::Result<Self> {
        let gpu = comm.context().gpu(device_of(comm.bootstrap().rank()))?;
        let kernel = Module::load_once(&gpu, &KERNEL)?.kernel("add_up")?;
        let group = Group::meet(comm, "adders", 1, None, tag)?;
        group.agree(&[("words", WORDS as u64)])?;
        let room = DeviceRoom::new(&group, &gpu, 2)?;
        let blocks = room.blocks(&group, &kernel, THREADS, 0)?.min(2);
        let n = group.ranks().len();
        let scratch = Scratch::connect(&group, &gpu, 2 * n as u64 * 2 * BYTES)?;
        let epochs = gpu.allocate(8 * u64::from(blocks))?;
        let mut handle = Handle {
            scratch: [DevicePtr::NULL; 4],
            status: [DevicePtr::NULL; 4],
            epochs: epochs.ptr(),
            rank: group.rank() as u32,
            ranks: n as u32,
        };
        handle.scratch[..n].copy_from_slice(scratch.at());
        handle.status[..n].copy_from_slice(scratch.statuses());
        Ok(Self { gpu, kernel, scratch, epochs, handle, blocks, order: CallOrder::default(), room })
    }

    fn add_up(&self, numbers: &DeviceBuffer, sums: &DeviceBuffer, stream: &Stream) -> mscclpp::Result<()> {
        let args = KernelArgs::new().with_owner(self.scratch.owner().clone()).keeping_each([&self.epochs]);
        let args = args.with(self.handle).with(numbers).with(sums);
        let config = LaunchConfig::linear(self.blocks, THREADS);
        self.order.put(stream, || {
            assert!(!self.order.is_complete().expect("an answer"), "this call is not");
            // SAFETY: these are the kernel's parameters, and so many blocks fit beside another call.
            unsafe { self.kernel.launch(stream, config, &args) }.map_err(mscclpp::Error::from)
        })
    }

    fn finish(&self, stream: &Stream) -> mscclpp::Result<()> {
        stream.synchronize_or_abort(LIMIT, &self.scratch)
    }

    /// Memory with `number` in each word.
    fn words(&self, number: u64) -> DeviceBuffer {
        let buffer = self.gpu.allocate(BYTES).expect("memory");
        buffer.write_params(0, &[number; WORDS]).expect("words");
        buffer
    }
}

#[track_caller]
fn expect_words(buffer: &DeviceBuffer, number: u64) {
    let mut words = [0; WORDS];
    buffer.read_params(0, &mut words).expect("words");
    assert_eq!(words, [number; WORDS]);
}

/// Calls follow each other without a barrier, on two streams, in graphs that are replayed, and beside those of another engine.
#[test]
fn an_engine_of_ones_own_needs_nothing_but_the_public_parts() {
    ranks(3, |comm| {
        let adder = Adder::connect(&comm, 1).expect("an engine");
        let other = Adder::connect(&comm, 2).expect("another one");
        assert!(other.room.engines() >= 2, "{} on the device", other.room.engines());
        let [first, second, beside] = [(); 3].map(|()| adder.gpu.stream().expect("a stream"));
        let own = 1 + comm.bootstrap().rank() as u64;
        // Each call adds up what the one before it has made, whatever stream that was in.
        let sums: Vec<_> = (0..9).map(|i| adder.words(if i == 0 { own } else { 0 })).collect();
        let others = other.words(0);
        for (i, pair) in sums.windows(2).enumerate() {
            // Ranks begin with different engines.
            let calls = [
                (&adder, &pair[0], &pair[1], [&first, &second][i % 2]),
                (&other, &sums[0], &others, &beside),
            ];
            for call in 0..2 {
                let (engine, numbers, sums, stream) = calls[(call + own as usize) % 2];
                engine.add_up(numbers, sums, stream).expect("a call");
            }
        }
        for (engine, stream) in [(&adder, &first), (&adder, &second), (&other, &beside)] {
            engine.finish(stream).expect("the calls");
        }
        sums.iter().enumerate().skip(1).for_each(|(i, sums)| expect_words(sums, 6 * 3u64.pow(i as u32 - 1)));
        expect_words(&others, 6);
        assert!(adder.order.is_complete().expect("an answer"));

        // Two calls of a graph, the second with the sums of the first; replays and calls in turns.
        let [once, twice] = [(); 2].map(|()| adder.words(0));
        first.begin_capture().expect("a capture");
        adder.add_up(&sums[0], &once, &first).expect("a call");
        assert!(adder.order.is_in_capture().expect("an answer"));
        adder.add_up(&once, &twice, &first).expect("a call");
        let graph = first.end_capture().expect("a graph");
        for replay in 1..=5 {
            sums[0].write_params(0, &[own * replay; WORDS]).expect("words");
            // SAFETY: what was captured keeps its memory.
            unsafe { graph.launch(&first).expect("a replay") };
            adder.finish(&first).expect("the replay");
            expect_words(&twice, 18 * replay);
            adder.add_up(&sums[0], &once, &second).expect("a call");
            adder.finish(&second).expect("the call");
            expect_words(&once, 6 * replay);
        }
        comm.bootstrap().barrier().expect("all are done");
    });
}

#[test]
fn ranks_that_do_not_agree_have_an_error_that_names_engine_setting_and_rank() {
    let errors = ranks(3, |comm| {
        let rank = comm.bootstrap().rank();
        let versions = Group::meet(&comm, "adders", u64::from(rank == 1), None, 1).map(drop);
        let group = Group::meet(&comm, "adders", 1, None, 2).expect("one version");
        let capacities = group.agree(&[("ranks", 3), ("capacity", if rank == 2 { 64 } else { 32 })]);
        [versions, capacities].map(|error| error.expect_err("they differ"))
    });
    for (rank, [version, capacity]) in errors.into_iter().enumerate() {
        assert_eq!([version.kind(), capacity.kind()], [ErrorKind::InvalidUsage; 2]);
        let version = version.to_string();
        assert!(version.contains("set up adders with different builds"), "{version}");
        assert!(version.contains("rank 1"), "{version}");
        let (ours, other, theirs) = if rank == 2 { (64, 0, 32) } else { (32, 2, 64) };
        let expected = format!(
            "rank {rank} and rank {other} set up adders with different capacity: {ours} and {theirs}"
        );
        assert_eq!(capacity.to_string(), expected);
    }
}

#[test]
fn scratch_that_one_rank_has_no_memory_for_is_an_error_on_all() {
    let errors = ranks(2, |comm| {
        let rank = comm.bootstrap().rank();
        let group = Group::meet(&comm, "adders", 1, None, 1).expect("one version");
        let gpu = comm.context().gpu(device_of(rank)).expect("a device");
        let bytes = if rank == 1 { 1 << 50 } else { BYTES };
        let error = Scratch::connect(&group, &gpu, bytes).expect_err("1 PiB is too much");
        comm.bootstrap().barrier().expect("both have an error");
        error.to_string()
    });
    assert!(errors[0].contains("the scratch: rank 1 could not"), "{}", errors[0]);
}

#[test]
fn a_call_that_waits_for_a_rank_ends_when_its_time_is_up_and_says_for_whom_it_waited() {
    ranks(2, |comm| {
        let adder = Adder::connect(&comm, 1).expect("an engine");
        if comm.bootstrap().rank() == 0 {
            let stream = adder.gpu.stream().expect("a stream");
            let numbers = adder.words(1);
            adder.add_up(&numbers, &numbers, &stream).expect("a call");
            thread::sleep(Duration::from_millis(10));
            assert!(!adder.order.is_complete().expect("an answer"), "rank 1 makes no call");
            let late = stream.synchronize_or_abort(Duration::from_millis(10), &adder.scratch);
            let late = late.expect_err("nothing comes");
            assert_eq!(late.kind(), ErrorKind::Timeout);
            assert!(late.to_string().contains("rank 1"), "{late}");
            expect_words(&numbers, 1);
            // Later waits end at once.
            adder.add_up(&numbers, &numbers, &stream).expect("a launch");
            let ended = adder.finish(&stream).expect_err("it was aborted");
            assert_eq!(ended.kind(), ErrorKind::Aborted, "{ended}");
            assert!(adder.scratch.check().is_err());
        }
        comm.bootstrap().barrier().expect("both are done");
    });
}
