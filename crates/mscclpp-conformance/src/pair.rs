//! Two connected ends, memories between them, and functions by which the cases watch them.

use std::{
    sync::atomic::{Ordering, fence},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use mscclpp_core::{
    Connection, Context, ContextBuilder, Device, Endpoint, EndpointConfig, RegisteredMemory, Transport,
};
use mscclpp_gpu::{DeviceBuffer, Gpu};

use crate::{Setup, elsewhere::Elsewhere};

/// The limit for everything that ends by itself. It is generous: it should catch only hangs, and on a busy machine a
/// second of work may take a minute.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Checks that the result is an error of that pattern.
macro_rules! assert_error {
    ($result:expr, $pattern:pat) => {
        match $result {
            Err($pattern) => {}
            other => panic!("{} should be {}, is {other:?}", stringify!($result), stringify!($pattern)),
        }
    };
}
pub(crate) use assert_error;

/// Begins a new context on the platform of the setup.
pub(crate) fn builder(setup: &dyn Setup) -> ContextBuilder {
    setup.builder().platform(setup.devices().platform())
}

/// Returns the device of an end. `side` is 0 or 1.
pub(crate) fn device(setup: &dyn Setup, side: usize) -> Device {
    setup.devices().of_ends()[side]
}

/// The part of one process, with a context and an endpoint of its own.
pub(crate) struct End {
    pub(crate) context: Context,
    pub(crate) gpu: Gpu,
    pub(crate) endpoint: Endpoint,
}

impl End {
    /// Opens an end. `side` is 0 or 1.
    pub(crate) fn open(setup: &dyn Setup, side: usize) -> Self {
        let elsewhere = Elsewhere::beside(setup.transport());
        let context = builder(setup).provider(elsewhere).build();
        let device = device(setup, side);
        let Device { id: Some(id), .. } = device else {
            panic!("the suite needs numbered GPUs, not {device}")
        };
        let gpu = context.gpu(id).expect("the GPU of an end");
        let endpoint = context
            .create_endpoint(
                EndpointConfig::new(setup.transport(), device).tokens_on_host(setup.tokens_on_host()),
            )
            .expect("the endpoint of an end");
        Self { context, gpu, endpoint }
    }

    /// Allocates `len` zeroed bytes of its device, and registers them. Returns the memory also as a peer would get
    /// it.
    pub(crate) fn share(&self, len: u64) -> SharedMemory {
        let buffer = self.gpu.allocate(len).expect("a buffer");
        let memory =
            self.context.register_buffer(&buffer, self.endpoint.transport()).expect("a registration");
        let at_peer = travel(&memory);
        SharedMemory { buffer, memory, at_peer }
    }

    /// The same as [`End::share`], but the memory holds `bytes`.
    pub(crate) fn share_bytes(&self, bytes: &[u8]) -> SharedMemory {
        let shared = self.share(bytes.len() as u64);
        shared.buffer.write(0, bytes).expect("writing a buffer");
        shared
    }
}

/// A memory as its owner has it and as the peer has it.
pub(crate) struct SharedMemory {
    pub(crate) buffer: DeviceBuffer,
    pub(crate) memory: RegisteredMemory,
    pub(crate) at_peer: RegisteredMemory,
}

impl SharedMemory {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.buffer.len() as usize];
        self.buffer.read(0, &mut bytes).expect("reading a buffer");
        bytes
    }
}

/// Two ends, connected in both directions.
pub(crate) struct Pair {
    pub(crate) a: End,
    pub(crate) b: End,
    pub(crate) ab: Connection,
    pub(crate) ba: Connection,
}

impl Pair {
    pub(crate) fn connect(setup: &dyn Setup) -> Self {
        Self::of(End::open(setup, 0), End::open(setup, 1))
    }

    pub(crate) fn of(a: End, b: End) -> Self {
        let ab = a.context.connect(&a.endpoint, &received(&b.endpoint)).expect("connecting a to b");
        let ba = b.context.connect(&b.endpoint, &received(&a.endpoint)).expect("connecting b to a");
        Self { a, b, ab, ba }
    }
}

/// Returns the endpoint as its peer gets it.
pub fn received(endpoint: &Endpoint) -> Endpoint {
    Endpoint::deserialize(&endpoint.serialize().expect("serializing an endpoint"))
        .expect("reading an endpoint")
}

/// Returns the memory as a peer gets it.
pub(crate) fn travel(memory: &RegisteredMemory) -> RegisteredMemory {
    RegisteredMemory::deserialize(&memory.serialize().expect("serializing a memory"))
        .expect("reading a memory")
}

/// The transport that the suite itself adds.
pub(crate) fn other_transport(setup: &dyn Setup) -> Transport {
    Elsewhere::beside(setup.transport()).transport()
}

/// Whether a seed determines the schedule of simulated devices. Then one block at a time runs, and each of its turns
/// is a change of threads.
pub(crate) fn is_scheduled() -> bool {
    std::env::var_os("MSCCLPP_SIM_SCHEDULE").is_some()
}

/// Returns the number of rounds for a kernel: `most`, or fewer if a seed determines the schedule.
pub(crate) fn rounds(most: u64) -> u64 {
    if is_scheduled() { most / 50 } else { most }
}

/// Returns random bytes, different ones each time.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::fill(&mut bytes);
    bytes
}

/// Checks that two byte strings are equal; the panic names the first byte that differs.
pub(crate) fn assert_same(got: &[u8], expected: &[u8], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}: length");
    // Comparing byte by byte is slow without optimisation.
    if got == expected {
        return;
    }
    if let Some(at) = (0..got.len()).find(|i| got[*i] != expected[*i]) {
        panic!("{what}: byte {at} of {} is {:#04x}, not {:#04x}", got.len(), got[at], expected[at]);
    }
}

/// Polls `done` until it holds. Returns false if it does not within `limit`.
pub(crate) fn eventually(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    while !done() {
        if Instant::now() > deadline {
            return false;
        }
        thread::sleep(Duration::from_micros(200));
    }
    true
}

/// Waits for a value without sleeping, so that the caller sees what came before it as early as possible.
pub(crate) fn await_value(memory: &SharedMemory, offset: u64, value: u64) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut word = [0; 8];
        memory.buffer.read(offset, &mut word).expect("polling");
        // On simulated devices the read is a relaxed atomic load; with the fence it pairs with the releasing update.
        fence(Ordering::Acquire);
        if u64::from_ne_bytes(word) == value {
            return;
        }
        assert!(Instant::now() < deadline, "{value} has not arrived within {PATIENCE:?}");
        thread::yield_now();
    }
}

/// Returns the result of the thread. Panics if the thread does not end within `limit`, or panicked.
pub(crate) fn join<T>(thread: JoinHandle<T>, limit: Duration, what: &str) -> T {
    assert!(eventually(limit, || thread.is_finished()), "{what} still hangs after {limit:?}");
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Runs `body` on a thread of its own, so that a hang fails the case and not the whole run.
pub(crate) fn within<T: Send + 'static>(
    limit: Duration,
    what: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> T {
    join(thread::spawn(body), limit, what)
}
