//! What the tests of this crate share: words of host memory, and connected CPU endpoints.

#![allow(dead_code, reason = "each test program uses a part of this")]

pub(crate) mod cutter;
pub(crate) mod hosts;
pub(crate) mod relay;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use mscclpp_core::{
    Connection, Context, Device, Endpoint, EndpointConfig, HostToHostSemaphore, RegisteredMemory, Semaphore,
    SemaphoreStub, Transport,
};
use mscclpp_ethernet::{Ethernet, EthernetBuilder};
use mscclpp_gpu::{DevicePtr, Platform};

/// A context with a provider of its own, as a process would have it.
pub(crate) fn context(ethernet: EthernetBuilder) -> Context {
    Context::builder().provider(ethernet.build()).platform(Platform::Sim).build()
}

/// A process's part, on a CPU.
pub(crate) struct End {
    pub(crate) context: Context,
    pub(crate) endpoint: Endpoint,
}

impl End {
    pub(crate) fn open() -> Self {
        Self::with(Ethernet::builder())
    }

    pub(crate) fn with(ethernet: EthernetBuilder) -> Self {
        let context = context(ethernet);
        let endpoint = context
            .create_endpoint(EndpointConfig::new(Transport::ETHERNET, Device::CPU))
            .expect("an endpoint");
        Self { context, endpoint }
    }

    pub(crate) fn connect(&self, peer: &Endpoint) -> Connection {
        self.context.connect(&self.endpoint, &arrived(peer)).expect("connecting")
    }
}

/// An endpoint as its peer gets it.
pub(crate) fn arrived(endpoint: &Endpoint) -> Endpoint {
    Endpoint::deserialize(&endpoint.serialize().expect("serializing")).expect("reading")
}

/// Two ends, connected both ways.
pub(crate) struct Pair {
    pub(crate) ab: Connection,
    pub(crate) ba: Connection,
    pub(crate) a: End,
    pub(crate) b: End,
}

impl Pair {
    pub(crate) fn open() -> Self {
        Self::of(End::open(), End::open())
    }

    pub(crate) fn of(a: End, b: End) -> Self {
        Self { ab: a.connect(&b.endpoint), ba: b.connect(&a.endpoint), a, b }
    }

    /// A semaphore, as each side has it.
    pub(crate) fn semaphores(&self) -> (HostToHostSemaphore, HostToHostSemaphore) {
        semaphores(&self.ab, &self.ba)
    }
}

/// A semaphore over two connections that are each other's way back.
pub(crate) fn semaphores(ab: &Connection, ba: &Connection) -> (HostToHostSemaphore, HostToHostSemaphore) {
    let (a, b) = (SemaphoreStub::new(ab).expect("a stub"), SemaphoreStub::new(ba).expect("a stub"));
    let travel = |stub: &SemaphoreStub| {
        SemaphoreStub::deserialize(&stub.serialize().expect("serializing")).expect("reading")
    };
    let build = |local: &SemaphoreStub, remote: &SemaphoreStub| {
        let semaphore = Semaphore::new(local, &travel(remote)).expect("joining");
        HostToHostSemaphore::new(&semaphore).expect("the host's side")
    };
    (build(&a, &b), build(&b, &a))
}

/// Host memory that peers write while this process reads it. Around it are words that nobody may write, which is checked
/// when it is dropped.
pub(crate) struct Words {
    // Withdrawn before the memory goes.
    pub(crate) memory: RegisteredMemory,
    words: Arc<[AtomicU64]>,
}

/// How many words are around it at either end, and what they are.
const GUARD: usize = 512;
const PATTERN: u64 = 0xa5a5_a5a5_a5a5_a5a5;

impl Words {
    pub(crate) fn new(context: &Context, count: usize) -> Self {
        let is_guard = |i: usize| !(GUARD..GUARD + count).contains(&i);
        let words: Arc<[AtomicU64]> =
            (0..2 * GUARD + count).map(|i| AtomicU64::new(if is_guard(i) { PATTERN } else { 0 })).collect();
        let (start, len) = (DevicePtr::from_ptr(words.as_ptr().wrapping_add(GUARD)), 8 * count as u64);
        // SAFETY: `self` keeps the memory longer than the registration; tests keep it longer than peers use it.
        let memory = unsafe { context.register_memory(start, len, Transport::ETHERNET) };
        Self { memory: memory.expect("a registration"), words }
    }

    /// As its peer gets it.
    pub(crate) fn at_peer(&self) -> RegisteredMemory {
        RegisteredMemory::deserialize(&self.memory.serialize().expect("serializing")).expect("reading")
    }

    fn words(&self) -> &[AtomicU64] {
        &self.words[GUARD..self.words.len() - GUARD]
    }

    pub(crate) fn set(&self, index: usize, value: u64) {
        self.words()[index].store(value, Ordering::Relaxed);
    }

    pub(crate) fn at(&self, index: usize) -> u64 {
        self.words()[index].load(Ordering::Relaxed)
    }

    /// The value, and with it whatever was placed before it.
    pub(crate) fn acquire(&self, index: usize) -> u64 {
        self.words()[index].load(Ordering::Acquire)
    }

    pub(crate) fn len(&self) -> usize {
        self.words().len()
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        let mut guards = self.words[..GUARD].iter().chain(&self.words[GUARD + self.len()..]);
        let untouched = guards.all(|word| word.load(Ordering::Relaxed) == PATTERN);
        assert!(untouched || thread::panicking(), "memory outside a region was written");
    }
}

/// A number that tells nothing of the one it was made from.
pub(crate) fn mix(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
}
