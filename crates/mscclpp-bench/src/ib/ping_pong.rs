//! 8 bytes followed by a signal: by the library, and by bare verbs, which post the same work requests and wait for the same
//! completions.

use std::sync::atomic::{AtomicU64, Ordering};

use mscclpp::{
    channels::{HostToHostSemaphore, IbMode, SendQueue, SignallerId},
    provider::RouteId,
};

use super::OnAdapter;
use crate::{
    bare_verbs::{QueuePair, Registered, Request},
    prelude::*,
    waiting::wait_for,
};

/// One way to exchange messages with the other rank.
pub(super) trait PingPong {
    fn send(&mut self, value: u64) -> Result<()>;

    /// Waits for the signal of the next message, and returns its value.
    fn receive(&mut self) -> Result<u64>;
}

/// The memory of a side that both adapters access, on a cache line of its own.
#[repr(C, align(128))]
#[derive(Default)]
pub(super) struct SignalMemory {
    pub(super) sent: AtomicU64,
    pub(super) arrived: AtomicU64,
    /// Used by bare verbs alone: the count of signals, and the former value that an atomic found at the peer.
    pub(super) token: AtomicU64,
    pub(super) old: AtomicU64,
}

impl SignalMemory {
    pub(super) const LEN: u64 = size_of::<Self>() as u64;
    pub(super) const SENT: u64 = std::mem::offset_of!(Self, sent) as u64;
    pub(super) const ARRIVED: u64 = std::mem::offset_of!(Self, arrived) as u64;
    pub(super) const TOKEN: u64 = std::mem::offset_of!(Self, token) as u64;
    pub(super) const OLD: u64 = std::mem::offset_of!(Self, old) as u64;

    /// Allocates words that are never freed, so that adapters write to no other memory even after an error.
    pub(super) fn new() -> &'static Self {
        Box::leak(Box::default())
    }

    pub(super) fn start(&'static self) -> *const () {
        std::ptr::from_ref(self).cast()
    }
}

/// Submits all operations of a queue to its transport.
pub(super) fn hand_over(queue: &mut SendQueue) -> Result<()> {
    if queue.submit()? == 0 {
        return Ok(());
    }
    wait_for("room in the queue", || {
        queue.progress()?;
        Ok((queue.waiting() == 0).then_some(()))
    })
}

/// The most polls of a wait. With the pauses between them, they take at least 50 seconds.
const POLLS: i64 = 1_000_000;

/// The library's way: a put with a signal, given to a queue like a proxy does, and a wait for the token like host code does.
pub(super) struct Signals {
    queue: SendQueue,
    route: RouteId,
    signaller: SignallerId,
    semaphore: HostToHostSemaphore,
    words: &'static SignalMemory,
    // The peer can reach the words as long as this is kept.
    _mine: RegisteredMemory,
}

impl Signals {
    pub(super) fn new(on: &OnAdapter, mode: IbMode) -> Result<Self> {
        let (comm, other) = (&on.ranks.comm, on.ranks.other());
        let mut endpoint = on.endpoint();
        endpoint.ib = endpoint.ib.mode(mode);
        let connection = on.ranks.connect(endpoint)?;
        let words = SignalMemory::new();
        // SAFETY: the words are atomics and are never freed.
        let mine = unsafe {
            comm.register_memory(DevicePtr::from_ptr(words.start()), SignalMemory::LEN, on.transport)?
        };
        let peers = on.ranks.share(&mine)?;
        let semaphore = comm.build_semaphore_with(&connection, other, 0)?.wait()?;
        let mut queue = connection.open_queue()?;
        let route = queue.route(&peers, &mine)?;
        let signaller = queue.attach(semaphore.signaller()?)?;
        let semaphore = HostToHostSemaphore::new(&semaphore)?;
        Ok(Self { queue, route, signaller, semaphore, words, _mine: mine })
    }
}

impl PingPong for Signals {
    fn send(&mut self, value: u64) -> Result<()> {
        // The adapter has read the last value, because the peer has answered it.
        self.words.sent.store(value, Ordering::Relaxed);
        self.queue.write(self.route, SignalMemory::ARRIVED, SignalMemory::SENT, 8)?;
        self.queue.signal(self.signaller)?;
        hand_over(&mut self.queue)
    }

    fn receive(&mut self) -> Result<u64> {
        self.semaphore.wait(POLLS)?;
        // Relaxed is enough: the wait has acquired the value.
        Ok(self.words.arrived.load(Ordering::Relaxed))
    }
}

/// The number of receives that the library posts with its defaults.
const RECEIVES: u32 = 16;

/// The bare verbs' way: a write, followed by an atomic that counts signals in the peer's memory, or with an immediate number.
pub(super) struct BareSignals {
    qp: QueuePair,
    words: &'static SignalMemory,
    by_atomics: bool,
    depth: u32,
    sent: u32,
    received: u32,
}

impl BareSignals {
    pub(super) fn new(on: &OnAdapter, by_atomics: bool) -> Result<Self> {
        let words = SignalMemory::new();
        // SAFETY: the words are atomics and are never freed.
        let registered = unsafe { Registered::new(&on.bare, words.start(), SignalMemory::LEN, false)? };
        let depth = on.depth();
        let receives = if by_atomics { 0 } else { RECEIVES };
        let qp = QueuePair::connect(&on.bare, &on.ranks, depth, receives, registered)?;
        Ok(Self { qp, words, by_atomics, depth, sent: 0, received: 0 })
    }
}

impl PingPong for BareSignals {
    fn send(&mut self, value: u64) -> Result<()> {
        // The adapter has read the last value, because the peer has answered it.
        self.words.sent.store(value, Ordering::Relaxed);
        self.sent = self.sent.wrapping_add(1);
        if self.qp.under_way() * 2 >= self.depth {
            self.qp.reap()?;
        }
        let write = |immediate| Request::Write {
            from: SignalMemory::SENT,
            to: SignalMemory::ARRIVED,
            len: 8,
            immediate,
        };
        match self.by_atomics {
            true => {
                let add = Request::AddOne { to: SignalMemory::TOKEN, old: SignalMemory::OLD };
                self.qp.post([write(None), add], true)
            }
            false => self.qp.post([write(Some(self.sent))], true),
        }
    }

    fn receive(&mut self) -> Result<u64> {
        self.received = self.received.wrapping_add(1);
        let due = self.received;
        if self.by_atomics {
            let token = &self.words.token;
            // Acquire makes the data visible that was written before the atomic.
            wait_for("a signal", || Ok((token.load(Ordering::Acquire) >= due.into()).then_some(())))?;
        } else {
            let number = wait_for("a number", || self.qp.take_immediate())?;
            if number != due {
                return Err(format!("bare verbs: number {number} came, {due} was due").into());
            }
        }
        Ok(self.words.arrived.load(Ordering::Relaxed))
    }
}
