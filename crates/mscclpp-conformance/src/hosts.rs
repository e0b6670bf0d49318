//! Two connected ends on CPUs in one process, with words of host memory between them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use mscclpp_core::{
    Connection, Context, Endpoint, EndpointConfig, HostToHostSemaphore, RegisteredMemory, Semaphore,
};
use mscclpp_gpu::DevicePtr;

use crate::{pair::received, semaphores::build};

/// The context and endpoint of one process.
pub struct End {
    pub context: Context,
    pub endpoint: Endpoint,
}

impl End {
    pub fn open(context: Context, config: EndpointConfig) -> Self {
        Self { endpoint: context.create_endpoint(config).expect("an endpoint"), context }
    }

    pub fn connect(&self, peer: &Endpoint) -> Connection {
        self.context.connect(&self.endpoint, &received(peer)).expect("connecting")
    }
}

/// Two ends that are connected in both directions.
pub struct Pair {
    pub ab: Connection,
    pub ba: Connection,
    pub a: End,
    pub b: End,
}

impl Pair {
    pub fn of(a: End, b: End) -> Self {
        Self { ab: a.connect(&b.endpoint), ba: b.connect(&a.endpoint), a, b }
    }

    /// Makes a semaphore, and returns each side's part of it.
    pub fn semaphores(&self) -> (HostToHostSemaphore, HostToHostSemaphore) {
        semaphores(&self.ab, &self.ba)
    }
}

/// Makes a semaphore over two connections between the same endpoints, one in each direction.
pub fn semaphores(ab: &Connection, ba: &Connection) -> (HostToHostSemaphore, HostToHostSemaphore) {
    let (a, b) = build(ab, ba);
    let host = |semaphore: &Semaphore| HostToHostSemaphore::new(semaphore).expect("the host's side");
    (host(&a), host(&b))
}

/// Host memory that peers write while this process reads it. There are guard words around it that nobody may write; `drop`
/// checks them.
pub struct Words {
    // Dropped, and so withdrawn, before the memory.
    pub memory: RegisteredMemory,
    words: Arc<[AtomicU64]>,
}

/// The number of guard words at either end, and their value.
const GUARD: usize = 512;
const PATTERN: u64 = 0xa5a5_a5a5_a5a5_a5a5;

impl Words {
    pub fn new(end: &End, count: usize) -> Self {
        let is_guard = |i: usize| !(GUARD..GUARD + count).contains(&i);
        let words: Arc<[AtomicU64]> =
            (0..2 * GUARD + count).map(|i| AtomicU64::new(if is_guard(i) { PATTERN } else { 0 })).collect();
        let (start, len) = (DevicePtr::from_ptr(words.as_ptr().wrapping_add(GUARD)), 8 * count as u64);
        // SAFETY: the words are atomics. `self` keeps them longer than the registration; tests keep it longer than peers
        // use it.
        let memory = unsafe { end.context.register_memory(start, len, end.endpoint.transport()) };
        Self { memory: memory.expect("a registration"), words }
    }

    /// The memory as its peer receives it.
    pub fn at_peer(&self) -> RegisteredMemory {
        crate::pair::travel(&self.memory)
    }

    fn words(&self) -> &[AtomicU64] {
        &self.words[GUARD..self.words.len() - GUARD]
    }

    pub fn set(&self, index: usize, value: u64) {
        self.words()[index].store(value, Ordering::Relaxed);
    }

    pub fn fill(&self, value: u64) {
        self.words().iter().for_each(|word| word.store(value, Ordering::Relaxed));
    }

    pub fn at(&self, index: usize) -> u64 {
        self.words()[index].load(Ordering::Relaxed)
    }

    /// Loads a word with acquire order: everything that was placed before its value is visible.
    pub fn acquire(&self, index: usize) -> u64 {
        self.words()[index].load(Ordering::Acquire)
    }

    pub fn count(&self) -> usize {
        self.words().len()
    }

    /// Returns how many words from the first on hold `value`.
    pub fn count_of(&self, value: u64) -> usize {
        self.words().iter().take_while(|word| word.load(Ordering::Relaxed) == value).count()
    }

    /// Checks that all words hold `value`. The error is the first that does not, and what it holds.
    pub fn all_hold(&self, value: u64) -> Result<(), (usize, u64)> {
        match self.count_of(value) {
            count if count == self.count() => Ok(()),
            first => Err((first, self.at(first))),
        }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        let mut guards = self.words[..GUARD].iter().chain(&self.words[GUARD + self.count()..]);
        let untouched = guards.all(|word| word.load(Ordering::Relaxed) == PATTERN);
        assert!(untouched || thread::panicking(), "memory outside a region was written");
    }
}
