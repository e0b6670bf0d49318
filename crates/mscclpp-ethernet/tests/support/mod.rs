//! Words of host memory and connected CPU endpoints, which several tests of this crate use.

#![allow(dead_code, reason = "each test program uses a part of this")]

pub(crate) mod cutter;
pub(crate) mod relay;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use mscclpp_conformance::{pair::received, semaphores::build};
use mscclpp_core::{
    Connection, Context, Device, Endpoint, EndpointConfig, HostToHostSemaphore, RegisteredMemory, Semaphore,
    Transport,
};
use mscclpp_ethernet::{Ethernet, EthernetBuilder};
use mscclpp_gpu::{DevicePtr, Platform};

/// Makes a context with a provider of its own, as each process has.
pub(crate) fn context(ethernet: EthernetBuilder) -> Context {
    Context::builder().provider(ethernet.build()).platform(Platform::Sim).build()
}

/// The context and CPU endpoint of one process.
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
        self.context.connect(&self.endpoint, &received(peer)).expect("connecting")
    }
}

/// Two ends that are connected in both directions.
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

    /// Makes a semaphore, and returns each side's part of it.
    pub(crate) fn semaphores(&self) -> (HostToHostSemaphore, HostToHostSemaphore) {
        semaphores(&self.ab, &self.ba)
    }
}

/// Makes a semaphore over two connections between the same endpoints, one in each direction.
pub(crate) fn semaphores(ab: &Connection, ba: &Connection) -> (HostToHostSemaphore, HostToHostSemaphore) {
    let (a, b) = build(ab, ba);
    let host = |semaphore: &Semaphore| HostToHostSemaphore::new(semaphore).expect("the host's side");
    (host(&a), host(&b))
}

/// Host memory that peers write while this process reads it. There are guard words around it that nobody may write; `drop`
/// checks them.
pub(crate) struct Words {
    // Dropped, and so withdrawn, before the memory.
    pub(crate) memory: RegisteredMemory,
    words: Arc<[AtomicU64]>,
}

/// The number of guard words at either end, and their value.
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

    /// The memory as its peer receives it.
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

    /// Loads a word with acquire order: everything that was placed before its value is visible.
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

/// Hashes a number.
pub(crate) fn mix(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
}
