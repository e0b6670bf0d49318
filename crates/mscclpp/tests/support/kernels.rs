//! The kernels of `cuda/kernels` that tests use, and launches of those that test semaphores.

use mscclpp::{BaseMemoryChannelHandle, Kernel, Stream, prelude::*};

use super::{LIMIT, results::Results};

macro_rules! kernel {
    ($name:literal) => {
        KernelSource::new($name, include_str!(concat!("../../../../cuda/kernels/", $name)))
    };
}

pub(crate) const ARGUMENTS: KernelSource<'static> = kernel!("arguments.cu");
pub(crate) const C_HEADERS: KernelSource<'static> = kernel!("c_headers.cu");
pub(crate) const CONCURRENCY: KernelSource<'static> = kernel!("concurrency.cu");
pub(crate) const FIFO: KernelSource<'static> = kernel!("fifo.cu");
pub(crate) const LIFETIMES: KernelSource<'static> = kernel!("lifetimes.cu");
pub(crate) const MEMORY_CHANNEL: KernelSource<'static> = kernel!("memory_channel.cu");
pub(crate) const PACKETS: KernelSource<'static> = kernel!("packets.cu");
pub(crate) const PORTED: KernelSource<'static> = kernel!("ported.cu");
pub(crate) const PORT_CHANNEL: KernelSource<'static> = kernel!("port_channel.cu");
const SEMAPHORE: KernelSource<'static> = kernel!("semaphore.cu");
const SIGNAL_DATA: KernelSource<'static> = kernel!("signal_data.cu");

/// The word at `index` in that round: splitmix64's finalizer, as in the kernels.
pub(crate) fn word_of(seed: u64, round: u64, index: u64) -> u64 {
    let x = seed.wrapping_add(round << 32).wrapping_add(index);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The result of `wait_once` and `poll_once`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    NotRun,
    Signalled,
    NotSignalled,
}

/// One side of a test: a stream of a device, kernels, and a buffer for their results.
pub(crate) struct Side {
    semaphore: Module,
    data: Module,
    pub(crate) stream: Stream,
    results: Results,
}

/// The offset in `results` of a wait's result; the other results follow.
const RESULT: u64 = 0;
const FAILED: u64 = 64;
const TAKEN: u64 = 128;
const MISMATCHES: u64 = 192;

/// The rounds that are checked, and the memory order of their signals.
#[derive(Clone, Copy)]
pub(crate) struct Rounds {
    pub(crate) words: u64,
    pub(crate) rounds: i32,
    pub(crate) seed: u64,
    pub(crate) relaxed: bool,
}

impl Side {
    pub(crate) fn new(gpu: &Gpu) -> mscclpp::Result<Self> {
        Ok(Self {
            semaphore: Module::load(gpu, &SEMAPHORE)?,
            data: Module::load(gpu, &SIGNAL_DATA)?,
            stream: gpu.stream()?,
            results: Results::new(gpu, 256)?,
        })
    }

    fn launch(&mut self, kernel: &Kernel, shape: LaunchConfig, args: &KernelArgs) {
        // SAFETY: callers give the arguments of the kernel; its channel and buffers outlive `finish`, which tests call.
        unsafe { kernel.launch(&self.stream, shape, args).expect("a launch") };
    }

    fn channel(channel: &BaseMemoryChannel) -> KernelArgs {
        KernelArgs::new().with::<BaseMemoryChannelHandle>(channel.device_handle())
    }

    /// Clears the results of the kernels.
    pub(crate) fn clear(&mut self) {
        self.results.clear();
    }

    /// Waits for the kernels.
    pub(crate) fn finish(&self) {
        self.stream.synchronize_timeout(LIMIT).expect("kernels end in time");
    }

    /// Starts `n` signals.
    pub(crate) fn signal(&mut self, channel: &BaseMemoryChannel, n: i32) {
        let kernel = self.semaphore.kernel("signal_n").expect("signal_n");
        self.launch(&kernel, LaunchConfig::linear(1, 1), &Self::channel(channel).with(n));
    }

    /// Starts one wait; [`Side::outcome`] says how it ended.
    pub(crate) fn start_wait(&mut self, channel: &BaseMemoryChannel, max_spin: i64) {
        self.clear();
        let kernel = self.semaphore.kernel("wait_once").expect("wait_once");
        let args = Self::channel(channel).with(max_spin).with(self.results.at(RESULT));
        self.launch(&kernel, LaunchConfig::linear(1, 1), &args);
    }

    /// Returns how the wait or poll ended.
    pub(crate) fn outcome(&self) -> Outcome {
        self.finish();
        match self.results.word(RESULT) {
            0 => Outcome::NotRun,
            1 => Outcome::Signalled,
            2 => Outcome::NotSignalled,
            other => panic!("the kernel said {other}"),
        }
    }

    /// Waits once, for at most so many polls.
    pub(crate) fn wait_once(&mut self, channel: &BaseMemoryChannel, max_spin: i64) -> Outcome {
        self.start_wait(channel, max_spin);
        self.outcome()
    }

    /// Polls once.
    pub(crate) fn poll_once(&mut self, channel: &BaseMemoryChannel) -> Outcome {
        self.clear();
        let kernel = self.semaphore.kernel("poll_once").expect("poll_once");
        let args = Self::channel(channel).with(self.results.at(RESULT));
        self.launch(&kernel, LaunchConfig::linear(1, 1), &args);
        self.outcome()
    }

    /// Starts `contended` with so many blocks of 96 threads.
    pub(crate) fn start_contended(&mut self, channel: &BaseMemoryChannel, blocks: u32, per_thread: i32) {
        self.clear();
        let kernel = self.semaphore.kernel("contended").expect("contended");
        let (max_spin, attempts) = (100i64, 100_000_000i64);
        let args = Self::channel(channel)
            .with(per_thread)
            .with(max_spin)
            .with(attempts)
            .with(self.results.at(TAKEN));
        self.launch(&kernel, LaunchConfig::linear(blocks, 96), &args);
    }

    /// Returns how many signals were taken by unbounded waits, by bounded waits, and by polls.
    pub(crate) fn taken(&self) -> [u64; 3] {
        self.finish();
        [0, 8, 16].map(|offset| self.results.word(TAKEN + offset))
    }

    /// Starts writing rounds of words into the peer's buffer.
    pub(crate) fn start_writing(
        &mut self,
        channel: &BaseMemoryChannel,
        peer_buffer: DevicePtr,
        what: Rounds,
    ) {
        self.clear();
        let kernel = self.data.kernel("signal_data_write").expect("signal_data_write");
        let args = Self::rounds(channel, peer_buffer, what).with(self.results.at(FAILED));
        self.launch(&kernel, LaunchConfig::linear(1, 128), &args);
    }

    /// Starts comparing the rounds that the peer writes.
    pub(crate) fn start_checking(&mut self, channel: &BaseMemoryChannel, buffer: DevicePtr, what: Rounds) {
        self.clear();
        let kernel = self.data.kernel("signal_data_check").expect("signal_data_check");
        let args = Self::rounds(channel, buffer, what)
            .with(self.results.at(MISMATCHES))
            .with(self.results.at(FAILED));
        self.launch(&kernel, LaunchConfig::linear(1, 128), &args);
    }

    fn rounds(channel: &BaseMemoryChannel, buffer: DevicePtr, what: Rounds) -> KernelArgs {
        let Rounds { words, rounds, seed, relaxed } = what;
        Self::channel(channel)
            .with(buffer)
            .with(words)
            .with(rounds)
            .with(seed)
            .with(i32::from(relaxed))
            .with(-1i64)
    }

    /// Waits for all rounds, and returns the number of words that were wrong.
    pub(crate) fn mismatches(&self) -> u64 {
        self.finish();
        assert_eq!(self.results.word(FAILED), 0, "a wait failed in the round before this one");
        self.results.word(MISMATCHES)
    }
}
