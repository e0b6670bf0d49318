//! 8 bytes followed by a signal, by the library.

use std::sync::atomic::{AtomicU64, Ordering};

use mscclpp::{
    channels::{HostToHostSemaphore, IbMode, SendQueue, SignallerId},
    prelude::*,
    provider::RouteId,
};

use super::OnAdapter;
use crate::{Result, waiting::wait_for};

/// A message to the other rank, and one from it.
pub(super) trait PingPong {
    fn send(&mut self, value: u64) -> Result<()>;

    /// Waits for the signal of the next message, and gives what came with it.
    fn receive(&mut self) -> Result<u64>;
}

/// What both adapters reach of a side, on a line of its own.
#[repr(C, align(128))]
#[derive(Default)]
pub(super) struct Words {
    pub(super) sent: AtomicU64,
    pub(super) arrived: AtomicU64,
    /// Of bare verbs alone: the count of signals, and what an atomic at the peer found.
    pub(super) token: AtomicU64,
    pub(super) old: AtomicU64,
}

impl Words {
    pub(super) const LEN: u64 = size_of::<Self>() as u64;
    pub(super) const SENT: u64 = std::mem::offset_of!(Self, sent) as u64;
    pub(super) const ARRIVED: u64 = std::mem::offset_of!(Self, arrived) as u64;
    pub(super) const TOKEN: u64 = std::mem::offset_of!(Self, token) as u64;
    pub(super) const OLD: u64 = std::mem::offset_of!(Self, old) as u64;

    /// They stay to the end of the process, so that also after an error adapters write to nothing else.
    pub(super) fn new() -> &'static Self {
        Box::leak(Box::default())
    }

    pub(super) fn start(&'static self) -> *const () {
        std::ptr::from_ref(self).cast()
    }
}

/// Hands what was given to a queue to its transport, all of it.
pub(super) fn hand_over(queue: &mut SendQueue) -> Result<()> {
    if queue.submit()? == 0 {
        return Ok(());
    }
    wait_for("room in the queue", || {
        queue.progress()?;
        Ok((queue.waiting() == 0).then_some(()))
    })
}

/// So many polls a wait has at most: with the pauses between them, these are 50 s at least.
const POLLS: i64 = 1_000_000;

/// A put with a signal, given to a queue as a proxy does, and a wait for the token as host code does.
pub(super) struct Signals {
    queue: SendQueue,
    route: RouteId,
    signaller: SignallerId,
    semaphore: HostToHostSemaphore,
    words: &'static Words,
    // Reachable as long as this is kept.
    _mine: RegisteredMemory,
}

impl Signals {
    pub(super) fn new(on: &OnAdapter, mode: IbMode) -> Result<Self> {
        let (comm, other) = (&on.ranks.comm, on.ranks.other());
        let mut endpoint = on.endpoint();
        endpoint.ib = endpoint.ib.mode(mode);
        let connection = on.ranks.connect(endpoint)?;
        let words = Words::new();
        // SAFETY: memory that stays, and is atomics.
        let mine =
            unsafe { comm.register_memory(DevicePtr::from_ptr(words.start()), Words::LEN, on.transport)? };
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
        // The adapter has read the last one: the peer has answered it.
        self.words.sent.store(value, Ordering::Relaxed);
        self.queue.write(self.route, Words::ARRIVED, Words::SENT, 8)?;
        self.queue.signal(self.signaller)?;
        hand_over(&mut self.queue)
    }

    fn receive(&mut self) -> Result<u64> {
        self.semaphore.wait(POLLS)?;
        // Relaxed: the wait has acquired it.
        Ok(self.words.arrived.load(Ordering::Relaxed))
    }
}
