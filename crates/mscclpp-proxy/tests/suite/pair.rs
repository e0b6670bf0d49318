//! Two connected sides with a service each, and functions by which the cases watch them.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    thread,
    time::Instant,
};

use mscclpp_core::{
    Connection, Context, Device, Endpoint, EndpointConfig, RegisteredMemory, Semaphore, SemaphoreStub,
};
use mscclpp_gpu::{DeviceBuffer, Gpu, Platform};
use mscclpp_proxy::{MemoryId, PortChannel, ProxyService, ProxyServiceBuilder, SemaphoreId};
use mscclpp_test_support::{LIMIT, until};

use super::{
    Setup,
    kernels::{Kernels, Thread},
};

/// A rank's part: a context, a device, and a service.
pub(crate) struct Side {
    pub(crate) context: Context,
    pub(crate) gpu: Gpu,
    pub(crate) connection: Connection,
    /// The memory that its kernels send from and receive into: two halves of one size.
    pub(crate) buffer: DeviceBuffer,
    pub(crate) own: RegisteredMemory,
    pub(crate) theirs: RegisteredMemory,
    pub(crate) semaphores: Vec<Semaphore>,
    pub(crate) service: ProxyService,
    pub(crate) kernels: Kernels,
}

/// The numbers of the peer's memory and of this side's memory in a service.
pub(crate) const THEIRS: MemoryId = MemoryId::from_raw(0);
pub(crate) const OWN: MemoryId = MemoryId::from_raw(1);

pub(crate) struct Pair {
    pub(crate) sides: [Side; 2],
}

impl Pair {
    /// Makes a pair whose services run, with one semaphore, over memories of `len` bytes.
    pub(crate) fn running(setup: &Setup, len: u64) -> Self {
        let pair = Self::new(setup, len, 1, |builder| builder);
        pair.sides.iter().for_each(|side| side.service.start_proxy(true).expect("a start"));
        pair
    }

    pub(crate) fn new(
        setup: &Setup,
        len: u64,
        semaphores: usize,
        options: impl Fn(ProxyServiceBuilder) -> ProxyServiceBuilder,
    ) -> Self {
        let contexts = [0, 1].map(|_| (setup.builder)().platform(Platform::Sim).build());
        let ends = [0, 1].map(|n| {
            let mut config = EndpointConfig::new(setup.transport, Device::gpu(n));
            if let Some(size) = setup.queue_size {
                config = config.max_write_queue_size(size);
            }
            contexts[n].create_endpoint(config).expect("an endpoint")
        });
        let seen = |end: &Endpoint| {
            Endpoint::deserialize(&end.serialize().expect("bytes")).expect("an endpoint again")
        };
        let connections =
            [0, 1].map(|n| contexts[n].connect(&ends[n], &seen(&ends[1 - n])).expect("a connection"));
        [0, 1].into_iter().for_each(|n| connections[n].set_label(format!("rank {}", 1 - n)));
        let stubs = [0, 1].map(|n| {
            (0..semaphores).map(|_| SemaphoreStub::new(&connections[n]).expect("a stub")).collect::<Vec<_>>()
        });
        let gpus = [0, 1].map(|n| contexts[n].gpu(n).expect("a device"));
        let buffers = [0, 1].map(|n| gpus[n].allocate(2 * len).expect("memory"));
        let memories = [0, 1]
            .map(|n| contexts[n].register_buffer(&buffers[n], setup.transport).expect("a registration"));
        let sides = [0, 1].map(|n| {
            let bytes = memories[1 - n].serialize().expect("bytes");
            let theirs = RegisteredMemory::deserialize(&bytes).expect("a memory");
            let semaphores: Vec<_> = (0..semaphores)
                .map(|i| {
                    let theirs = stubs[1 - n][i].serialize().expect("bytes");
                    let theirs = SemaphoreStub::deserialize(&theirs).expect("a stub");
                    Semaphore::new(&stubs[n][i], &theirs).expect("a semaphore")
                })
                .collect();
            // Bulk copies happen only inside kernels; other tests cover them.
            let service =
                options(ProxyService::builder(&gpus[n]).bulk_put_max(0)).build().expect("a service");
            assert_eq!(service.add_memory(&theirs).expect("a place"), THEIRS);
            assert_eq!(service.add_memory(&memories[n]).expect("a place"), OWN);
            for semaphore in &semaphores {
                service.add_semaphore(semaphore).expect("a place");
            }
            Side {
                context: contexts[n].clone(),
                gpu: gpus[n].clone(),
                connection: connections[n].clone(),
                buffer: buffers[n].clone(),
                own: memories[n].clone(),
                theirs,
                semaphores,
                service,
                kernels: Kernels::load(&gpus[n]),
            }
        });
        Self { sides }
    }
}

/// A guard made by [`Pair::guard`].
pub(crate) struct Guard<'a>(&'a Pair);

impl Pair {
    /// Returns a guard for a thread of a case: if the thread panics, the waits of the case's other threads end.
    pub(crate) fn guard(&self) -> Guard<'_> {
        Guard(self)
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.sides.iter().for_each(|side| side.service.abort("the test has failed"));
        }
    }
}

/// A barrier at which threads wait for each other, as those of a block do in `__syncthreads`.
pub(crate) struct Meeting {
    threads: usize,
    arrived: AtomicUsize,
}

impl Meeting {
    pub(crate) fn of(threads: usize) -> Self {
        Self { threads, arrived: AtomicUsize::new(0) }
    }

    pub(crate) fn meet(&self) {
        let turn = self.arrived.fetch_add(1, Ordering::AcqRel) / self.threads;
        let deadline = Instant::now() + LIMIT;
        while self.arrived.load(Ordering::Acquire) < (turn + 1) * self.threads {
            assert!(Instant::now() < deadline, "the other threads do not come");
            thread::yield_now();
        }
    }
}

impl Side {
    pub(crate) fn channel(&self, semaphore: u32) -> PortChannel {
        self.service.port_channel(SemaphoreId::from_raw(semaphore), THEIRS, OWN).expect("a channel")
    }

    /// Returns the calls of a kernel's thread on the first channel.
    pub(crate) fn thread(&self) -> Thread<'_> {
        self.thread_on(0)
    }

    /// The same as [`Side::thread`], for the channel over the given semaphore.
    pub(crate) fn thread_on(&self, semaphore: u32) -> Thread<'_> {
        Thread::of(&self.kernels, &self.channel(semaphore))
    }

    /// The words of the memory that its kernels use.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        let (start, len) = (self.buffer.ptr().as_mut_ptr::<AtomicU64>(), self.buffer.len() / 8);
        // SAFETY: memory of a simulated device, which `self` keeps; the cases access it with atomics, as proxies do.
        unsafe { std::slice::from_raw_parts(start, len as usize) }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.buffer.len() as usize];
        self.buffer.read(0, &mut bytes).expect("reading");
        bytes
    }
}

/// Stores `value(i)` in word `first + i` of `words`.
pub(crate) fn fill(words: &[AtomicU64], value: impl Fn(u64) -> u64) {
    for (i, word) in (0..).zip(words) {
        word.store(value(i), Ordering::Relaxed);
    }
}

/// Counts the words that are not `value(i)`.
pub(crate) fn mismatches(words: &[AtomicU64], value: impl Fn(u64) -> u64) -> usize {
    (0..).zip(words).filter(|(i, word)| word.load(Ordering::Relaxed) != value(*i)).count()
}

/// Mixes two numbers into one that is different for every pair (splitmix64).
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(b);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Runs `body` on a thread of its own, so that a hang fails the calling case.
pub(crate) fn within(what: &str, body: impl FnOnce() + Send + 'static) {
    let thread = thread::spawn(body);
    until(what, || thread.is_finished());
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}
