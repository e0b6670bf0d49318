//! Two connected ends in one process, with words of host memory between them.

#![allow(dead_code, reason = "each test takes its part")]

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use mscclpp_conformance::{pair::received, semaphores::build};
use mscclpp_core::{
    Connection, Context, Device, Endpoint, EndpointConfig, HostToHostSemaphore, IbConfig, IbMode,
    RegisteredMemory, Semaphore, Transport,
};
use mscclpp_gpu::{DevicePtr, Platform};
use mscclpp_ib::InfiniBand;

/// One of the two ends, on a CPU.
pub(crate) struct End {
    pub(crate) context: Context,
    pub(crate) endpoint: Endpoint,
    pub(crate) transport: Transport,
}

impl End {
    pub(crate) fn open(transport: Transport, mode: IbMode) -> Self {
        Self::with(transport, mode, IbConfig::new())
    }

    pub(crate) fn with(transport: Transport, mode: IbMode, config: IbConfig) -> Self {
        Self::over(InfiniBand::builder().mode(mode).build(), transport, config)
    }

    /// Makes an end with a provider of the test's own.
    pub(crate) fn over(infiniband: InfiniBand, transport: Transport, config: IbConfig) -> Self {
        let context = Context::builder().provider(infiniband).platform(Platform::Sim).build();
        Self::of(context, transport, config)
    }

    pub(crate) fn of(context: Context, transport: Transport, config: IbConfig) -> Self {
        let config = EndpointConfig::new(transport, Device::CPU).ib(config);
        let endpoint = context.create_endpoint(config).expect("an endpoint");
        Self { context, endpoint, transport }
    }

    pub(crate) fn connect(&self, peer: &Endpoint) -> Connection {
        self.context.connect(&self.endpoint, &received(peer)).expect("connecting")
    }
}

/// A connection from the first device to the second, and one back.
pub(crate) struct Pair {
    pub(crate) ab: Connection,
    pub(crate) ba: Connection,
    pub(crate) a: End,
    pub(crate) b: End,
}

impl Pair {
    pub(crate) fn open(mode: IbMode) -> Self {
        Self::of(End::open(Transport::IB0, mode), End::open(Transport::IB1, mode))
    }

    pub(crate) fn of(a: End, b: End) -> Self {
        Self { ab: a.connect(&b.endpoint), ba: b.connect(&a.endpoint), a, b }
    }

    /// Makes a semaphore. Returns it as each side has it.
    pub(crate) fn semaphores(&self) -> (HostToHostSemaphore, HostToHostSemaphore) {
        let (a, b) = build(&self.ab, &self.ba);
        let host = |semaphore: &Semaphore| HostToHostSemaphore::new(semaphore).expect("the host's side");
        (host(&a), host(&b))
    }
}

/// Words of host memory that adapters read and write.
pub(crate) struct Words {
    // Dropped before the words, so that adapters lose their access first.
    pub(crate) memory: RegisteredMemory,
    words: Arc<[AtomicU64]>,
}

impl Words {
    pub(crate) fn new(end: &End, count: usize) -> Self {
        let words: Arc<[AtomicU64]> = (0..count).map(|_| AtomicU64::new(0)).collect();
        let (ptr, len) = (DevicePtr::from_ptr(words.as_ptr()), size_of_val(&*words) as u64);
        // SAFETY: the words are atomics, and kept until the registration is gone.
        let memory = unsafe { end.context.register_memory(ptr, len, end.transport) }.expect("registering");
        Self { memory, words }
    }

    /// Returns the memory as a peer gets it.
    pub(crate) fn at_peer(&self) -> RegisteredMemory {
        RegisteredMemory::deserialize(&self.memory.serialize().expect("serializing")).expect("reading")
    }

    pub(crate) fn fill(&self, value: u64) {
        self.words.iter().for_each(|word| word.store(value, Ordering::Relaxed));
    }

    /// Returns how many words from the first on hold `value`.
    pub(crate) fn count_of(&self, value: u64) -> usize {
        self.words.iter().take_while(|word| word.load(Ordering::Relaxed) == value).count()
    }

    /// Checks that all words hold `value`. The error is the first that does not, and what it holds.
    pub(crate) fn all_hold(&self, value: u64) -> Result<(), (usize, u64)> {
        let wrong =
            self.words.iter().map(|word| word.load(Ordering::Relaxed)).enumerate().find(|(_, w)| *w != value);
        wrong.map_or(Ok(()), Err)
    }
}
