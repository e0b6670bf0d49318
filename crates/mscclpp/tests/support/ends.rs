//! Memory channels, and the kernels of the tests that use them.

use mscclpp::{gpu::Graph, prelude::*};

use super::{
    LIMIT, device_of,
    kernels::{MEMORY_CHANNEL, PACKETS},
    results::Results,
    semaphore_pair,
};

/// The registered memories of an end: for copies, and for the peer's packets.
pub(crate) struct Memories {
    pub(crate) data: DeviceBuffer,
    pub(crate) packets: DeviceBuffer,
    pub(crate) registered: [RegisteredMemory; 2],
}

impl Memories {
    pub(crate) fn new(context: &Context, gpu: &Gpu, data: u64, packets: u64) -> mscclpp::Result<Self> {
        let (data, packets) = (gpu.allocate(data)?, gpu.allocate(packets)?);
        let register = |buffer| context.register_buffer(buffer, Transport::CUDA_IPC);
        let registered = [register(&data)?, register(&packets)?];
        Ok(Self { data, packets, registered })
    }
}

/// A kind of packets, by its number in kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Data and flags are apart, as if a word of a packet did not carry its flag. On GPUs alone.
    Split = 0,
    LL8 = 8,
    LL16 = 16,
    LL128 = 128,
}

impl Kind {
    /// Returns all kinds that can be used between these ends.
    pub(crate) fn between(ends: &[End]) -> Vec<Self> {
        let refused = ends.iter().find_map(|end| end.packets.check_lines().err());
        match refused {
            None => vec![Self::LL8, Self::LL16, Self::LL128],
            Some(why) => {
                eprintln!("without LL128: {why}");
                vec![Self::LL8, Self::LL16]
            }
        }
    }

    /// Returns the bytes of a packet, and of the data in it.
    pub(crate) fn sizes(self) -> (u64, u64) {
        match self {
            Self::LL8 => (8, 4),
            Self::Split | Self::LL16 => (16, 8),
            Self::LL128 => (128, 120),
        }
    }
}

/// The promises of a copy's caller: the number that offsets are multiples of, and whether the size may be another.
#[derive(Clone, Copy)]
pub(crate) struct Promise {
    pub(crate) alignment: i32,
    pub(crate) remainder: bool,
}

impl Default for Promise {
    fn default() -> Self {
        Self { alignment: 16, remainder: true }
    }
}

/// The seeds of the data that both ends write in `put_round` and `packet_rounds`.
#[derive(Clone, Copy)]
pub(crate) struct Seeds {
    pub(crate) mine: u64,
    pub(crate) peers: u64,
}

impl Seeds {
    pub(crate) fn swapped(self) -> Self {
        Self { mine: self.peers, peers: self.mine }
    }
}

/// The arguments of `packet_rounds`.
#[derive(Clone, Copy)]
pub(crate) struct PacketRounds {
    pub(crate) kind: Kind,
    pub(crate) bytes: u64,
    pub(crate) rounds: i32,
    pub(crate) first_flag: u32,
    pub(crate) seeds: Seeds,
}

/// One end: two channels over a semaphore, for copies and for packets, its memories, and kernels of its device.
pub(crate) struct End {
    pub(crate) copies: MemoryChannel,
    pub(crate) packets: MemoryChannel,
    pub(crate) memories: Memories,
    pub(crate) stream: Stream,
    copy_kernels: Module,
    packet_kernels: Module,
    results: Results,
}

/// The offset in `results` of the mismatches; the other results follow.
const MISMATCHES: u64 = 0;
const FAILED: u64 = 64;
const ROUND: u64 = 128;
const SYNCERS: u64 = 192;
const RESULT: u64 = 256;

impl End {
    pub(crate) fn new(
        gpu: &Gpu,
        semaphore: &Semaphore,
        memories: Memories,
        theirs: &[RegisteredMemory; 2],
    ) -> mscclpp::Result<Self> {
        let [data, packets] = &memories.registered;
        let end = Self {
            copies: MemoryChannel::new(semaphore, &theirs[0], data, None)?,
            packets: MemoryChannel::new(semaphore, &theirs[1], data, Some(packets))?,
            stream: gpu.stream()?,
            copy_kernels: Module::load(gpu, &MEMORY_CHANNEL)?,
            packet_kernels: Module::load(gpu, &PACKETS)?,
            results: Results::new(gpu, 320)?,
            memories,
        };
        end.memories.packets.fill(0, end.memories.packets.len(), 0)?;
        Ok(end)
    }

    /// Makes two ends in this process with so much data and packets each.
    pub(crate) fn pair(context: &Context, devices: [usize; 2], data: u64, packets: u64) -> [Self; 2] {
        println!("devices {devices:?} of {}", context.platform().expect("a platform"));
        let gpus = devices.map(|id| context.gpu(id).expect("a device"));
        let semaphores = semaphore_pair(context, devices).expect("a pair of semaphores");
        let [a, b] = [&gpus[0], &gpus[1]]
            .map(|gpu| Memories::new(context, gpu, data, packets).expect("memory for an end"));
        let (of_a, of_b) = (a.registered.clone(), b.registered.clone());
        [
            Self::new(&gpus[0], &semaphores[0], a, &of_b).expect("one end"),
            Self::new(&gpus[1], &semaphores[1], b, &of_a).expect("the other end"),
        ]
    }

    /// Makes an end for each of these other ranks, with so much data and packets each. All ranks call it at once.
    pub(crate) fn with_each<'a>(
        comm: &Communicator,
        semaphores: impl Iterator<Item = (usize, &'a Semaphore)> + Clone,
        data: u64,
        packets: u64,
    ) -> mscclpp::Result<Vec<(usize, Self)>> {
        let gpu = comm.context().gpu(device_of(comm.bootstrap().rank()))?;
        let mut memories = Vec::new();
        for (peer, _) in semaphores.clone() {
            let these = Memories::new(comm.context(), &gpu, data, packets)?;
            for memory in &these.registered {
                comm.send_memory(memory, peer, 0)?;
            }
            memories.push(these);
        }
        let end = |((peer, semaphore), memories)| {
            let theirs = [comm.recv_memory(peer, 0)?, comm.recv_memory(peer, 0)?];
            let theirs = [theirs[0].wait()?, theirs[1].wait()?];
            Ok((peer, Self::new(&gpu, semaphore, memories, &theirs)?))
        };
        semaphores.zip(memories).map(end).collect()
    }

    fn launch(&self, module: &Module, kernel: &str, shape: LaunchConfig, args: &KernelArgs) {
        let kernel = module.kernel(kernel).expect("a kernel of the module");
        // SAFETY: callers give the arguments of the kernel; channels and buffers outlive `finish`, which tests call.
        unsafe { kernel.launch(&self.stream, shape, args).expect("a launch") };
    }

    fn args(channel: &MemoryChannel) -> KernelArgs {
        KernelArgs::new().with::<MemoryChannelHandle>(channel.device_handle())
    }

    /// Waits for the kernels.
    pub(crate) fn finish(&self) {
        self.stream.synchronize_timeout(LIMIT).expect("kernels end in time");
    }

    /// Waits for the kernels. Returns the round after the one in which one of them failed, or 0, and clears it.
    pub(crate) fn failed(&self) -> u64 {
        self.finish();
        self.results.take_word(FAILED)
    }

    /// Waits for the kernels, none of which may have failed, and returns the number of mismatches.
    pub(crate) fn mismatches(&self) -> u64 {
        assert_eq!(self.failed(), 0, "a wait failed in the round before this one");
        self.results.take_word(MISMATCHES)
    }

    /// Starts a put, or a get.
    pub(crate) fn start_copy(
        &self,
        get: bool,
        [target, origin]: [u64; 2],
        bytes: u64,
        promise: Promise,
        shape: LaunchConfig,
    ) {
        let args = Self::args(&self.copies).with(target).with(origin).with(bytes);
        let args = args.with(promise.alignment).with(i32::from(promise.remainder));
        let kernel = if get { "channel_get" } else { "channel_put" };
        self.launch(&self.copy_kernels, kernel, shape, &args);
    }

    /// Writes a word of the peer's memory and returns what is read there.
    pub(crate) fn write_read(&self, index: u64, value: u64) -> u64 {
        let args = Self::args(&self.copies).with(index).with(value).with(self.results.at(RESULT));
        self.launch(&self.copy_kernels, "channel_write_read", LaunchConfig::linear(1, 32), &args);
        self.finish();
        self.results.word(RESULT)
    }

    /// Copies each size of a range at all alignments, and returns how many bytes were wrong.
    pub(crate) fn sweep(
        &self,
        sizes: std::ops::Range<u64>,
        get: bool,
        seed: u64,
        shape: LaunchConfig,
    ) -> u64 {
        let slot = (sizes.end + 64).next_multiple_of(16);
        assert!(slot * u64::from(shape.grid[0]) <= self.memories.data.len());
        let args = Self::args(&self.copies).with(slot).with(sizes.start).with(sizes.end);
        let args = args.with(i32::from(get)).with(seed).with(self.results.at(MISMATCHES));
        self.launch(&self.copy_kernels, "copy_sweep", shape, &args);
        self.mismatches()
    }

    /// Starts a round of put, signal and wait: `words` words each way.
    pub(crate) fn start_put_round(&self, words: u64, seeds: Seeds, max_spin: i64, shape: LaunchConfig) {
        assert!(16 * words <= self.memories.data.len());
        let args =
            Self::args(&self.copies).with(self.results.at(SYNCERS)).with(self.results.at(ROUND)).with(words);
        let args = args.with(seeds.mine).with(seeds.peers).with(max_spin);
        let args = args.with(self.results.at(MISMATCHES)).with(self.results.at(FAILED));
        self.launch(&self.copy_kernels, "put_round", shape, &args);
    }

    /// Captures such a round as a graph.
    pub(crate) fn put_round_graph(&self, words: u64, seeds: Seeds, shape: LaunchConfig) -> Graph {
        self.stream.begin_capture().expect("a capture");
        self.start_put_round(words, seeds, -1, shape);
        self.stream.end_capture().expect("a graph")
    }

    /// Starts putting packets from `origin` of this end's memory to `target` of the peer's packet buffer.
    pub(crate) fn start_put_packets(
        &self,
        kind: Kind,
        [target, origin]: [u64; 2],
        bytes: u64,
        flag: u32,
        shape: LaunchConfig,
    ) {
        let args = Self::args(&self.packets).with(kind as i32).with(target).with(origin);
        let args = args.with(bytes).with(flag).with(self.results.at(FAILED));
        self.launch(&self.packet_kernels, "packets_put", shape, &args);
    }

    /// Starts taking packets from `target` of this end's packet buffer to `origin` of its memory.
    pub(crate) fn start_unpack(
        &self,
        kind: Kind,
        [target, origin]: [u64; 2],
        bytes: u64,
        flag: u32,
        max_spin: i64,
        shape: LaunchConfig,
    ) {
        let args = Self::args(&self.packets).with(kind as i32).with(target).with(origin);
        let args = args.with(bytes).with(flag).with(max_spin).with(self.results.at(FAILED));
        self.launch(&self.packet_kernels, "packets_unpack", shape, &args);
    }

    /// Waits for one packet, and returns its one or two words, or nothing if the wait failed.
    pub(crate) fn unpack_one(&self, kind: Kind, index: u64, flag: u32, max_spin: i64) -> Option<[u32; 2]> {
        self.results.take_word(RESULT);
        self.results.take_word(RESULT + 8);
        let args = Self::args(&self.packets).with(kind as i32).with(index).with(flag);
        let args = args.with(max_spin).with(self.results.at(RESULT));
        self.launch(&self.packet_kernels, "packet_unpack_one", LaunchConfig::linear(1, 32), &args);
        self.finish();
        let (low, high) = (self.results.word(RESULT), self.results.word(RESULT + 8));
        (low as u32 == 1).then_some([(low >> 32) as u32, high as u32])
    }

    /// Starts rounds of packets each way.
    pub(crate) fn start_packet_rounds(&self, what: PacketRounds, max_spin: i64, shape: LaunchConfig) {
        let PacketRounds { kind, bytes, rounds, first_flag, seeds } = what;
        let (size, payload) = kind.sizes();
        let blocks = u64::from(shape.grid[0]);
        let packets = (bytes.div_ceil(payload) * size).next_multiple_of(128);
        assert!(2 * blocks * packets <= self.memories.packets.len());
        assert!(2 * blocks * bytes.next_multiple_of(128) <= self.memories.data.len());
        let args = Self::args(&self.packets).with(kind as i32).with(bytes).with(rounds).with(first_flag);
        let args = args.with(seeds.mine).with(seeds.peers).with(max_spin);
        let args = args.with(self.results.at(MISMATCHES)).with(self.results.at(FAILED));
        self.launch(&self.packet_kernels, "packet_rounds", shape, &args);
    }
}
