//! 8 bytes followed by a signal: by the library, and by bare verbs, which post the same work requests and wait for the same
//! things.

use std::sync::atomic::{AtomicU64, Ordering};

use mscclpp::{
    channels::{HostToHostSemaphore, IbMode, SendQueue, SignallerId},
    prelude::*,
    provider::RouteId,
};

use super::OnAdapter;
use crate::{
    Result,
    bare_verbs::{QueuePair, Registered, Request},
    waiting::wait_for,
};

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

/// As many receives as the library has posted, with its defaults.
const RECEIVES: u32 = 16;

/// A write, and behind it an atomic that counts the signal in the peer's memory, or a number with the write itself.
pub(super) struct BareSignals {
    qp: QueuePair,
    words: &'static Words,
    by_atomics: bool,
    depth: u32,
    sent: u32,
    received: u32,
}

impl BareSignals {
    pub(super) fn new(on: &OnAdapter, by_atomics: bool) -> Result<Self> {
        let words = Words::new();
        // SAFETY: memory that stays, and is atomics.
        let registered = unsafe { Registered::new(&on.bare, words.start(), Words::LEN, false)? };
        let depth = on.depth();
        let receives = if by_atomics { 0 } else { RECEIVES };
        let qp = QueuePair::connect(&on.bare, &on.ranks, depth, receives, registered)?;
        Ok(Self { qp, words, by_atomics, depth, sent: 0, received: 0 })
    }
}

impl PingPong for BareSignals {
    fn send(&mut self, value: u64) -> Result<()> {
        // The adapter has read the last one: the peer has answered it.
        self.words.sent.store(value, Ordering::Relaxed);
        self.sent = self.sent.wrapping_add(1);
        if self.qp.under_way() * 2 >= self.depth {
            self.qp.reap()?;
        }
        let write = |immediate| Request::Write { from: Words::SENT, to: Words::ARRIVED, len: 8, immediate };
        match self.by_atomics {
            true => {
                let add = Request::AddOne { to: Words::TOKEN, old: Words::OLD };
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
            // Acquire: what was written before the atomic is then visible.
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
