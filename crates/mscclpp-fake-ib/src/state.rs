//! The state of the simulated adapters. One lock guards all of it.

use std::{
    collections::{BTreeMap, VecDeque},
    ffi::c_int,
    fmt::Write as _,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use mscclpp_verbs_sys as sys;

use crate::{
    config::{Config, DeviceConfig},
    faults::Faults,
    landing::Landing,
};

/// All adapters of one [`crate::Fake`]. It is never freed, so that a test's use of an object after the end is noticed
/// and not undefined.
pub(crate) struct World {
    state: Mutex<State>,
    /// Notified when there may be something to do.
    pub(crate) work: Condvar,
}

impl World {
    pub(crate) fn new(config: Config) -> &'static Self {
        Box::leak(Box::new(Self { state: Mutex::new(State::new(config)), work: Condvar::new() }))
    }

    /// Locks the state, also after a test panicked with the lock: that test has reported its failure, and others go
    /// on.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct State {
    pub(crate) config: Config,
    pub(crate) random: fastrand::Rng,
    pub(crate) devices: Vec<Device>,
    pub(crate) contexts: BTreeMap<usize, Context>,
    /// Protection domains by address, each with its context.
    pub(crate) domains: BTreeMap<usize, usize>,
    /// Regions by key; the local and the remote key are the same number.
    pub(crate) regions: BTreeMap<u32, Region>,
    pub(crate) channels: BTreeMap<usize, Channel>,
    pub(crate) cqs: BTreeMap<usize, Cq>,
    pub(crate) qps: BTreeMap<u32, Qp>,
    pub(crate) faults: Faults,
    pub(crate) counters: Counters,
    /// Misuses of the library by the program.
    pub(crate) misuse: Vec<String>,
    /// Reasons for refused calls that a program may try.
    pub(crate) refusals: Vec<String>,
    pub(crate) ended: bool,
    numbers: u32,
}

impl State {
    fn new(config: Config) -> Self {
        Self {
            random: fastrand::Rng::with_seed(config.seed),
            devices: Vec::new(),
            contexts: BTreeMap::new(),
            domains: BTreeMap::new(),
            regions: BTreeMap::new(),
            channels: BTreeMap::new(),
            cqs: BTreeMap::new(),
            qps: BTreeMap::new(),
            faults: Faults::default(),
            counters: Counters::default(),
            misuse: Vec::new(),
            refusals: Vec::new(),
            ended: false,
            numbers: 0x100,
            config,
        }
    }

    /// Returns a number that none of the world's objects has.
    pub(crate) fn number(&mut self) -> u32 {
        self.numbers += 1 + self.random.u32(..16);
        self.numbers
    }

    pub(crate) fn device(&self, context: usize) -> usize {
        self.contexts.get(&context).map_or(0, |context| context.device)
    }

    /// Notes a misuse of the library, and returns the errno for it.
    pub(crate) fn misused(&mut self, what: impl Into<String>) -> c_int {
        self.misuse.push(what.into());
        libc::EINVAL
    }

    /// Notes why a call is refused, and returns the errno for it.
    pub(crate) fn refused(&mut self, why: impl Into<String>) -> c_int {
        self.refusals.push(why.into());
        libc::EINVAL
    }

    pub(crate) fn describe(&self) -> String {
        let mut text = String::new();
        for (number, qp) in &self.qps {
            let Qp { state, device, attr, executed, send_places, receive_places, .. } = qp;
            let (peer, waiting) = (attr.dest_qp_num, qp.sends.len() - executed);
            let (arriving, receives) = (qp.landings.len(), qp.receives.len());
            let _ = writeln!(
                text,
                "queue pair {number} of device {device}, state {state}, peer {peer}: {waiting} requests to carry out, \
                 {executed} unacknowledged, {arriving} pieces arriving, {receives} receives; {send_places} and \
                 {receive_places} places taken; queues {:#x} and {:#x}",
                qp.send_cq, qp.receive_cq
            );
        }
        for (address, cq) in &self.cqs {
            let (left, armed) = (cq.entries.len(), cq.armed);
            let events = cq
                .channel
                .and_then(|channel| self.channels.get(&channel))
                .map_or(0, |channel| channel.events.len());
            let _ = writeln!(
                text,
                "completion queue {address:#x}: {left} completions not polled, armed for {armed:?}, {events} events on its channel"
            );
        }
        text
    }

    pub(crate) fn live(&self) -> Live {
        Live {
            contexts: self.contexts.len(),
            domains: self.domains.len(),
            regions: self.regions.len(),
            channels: self.channels.len(),
            completion_queues: self.cqs.len(),
            queue_pairs: self.qps.len(),
        }
    }
}

/// The number of objects of each kind. It equals its default if nothing has leaked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "a field is the number of what it is called")]
pub struct Live {
    pub contexts: usize,
    pub domains: usize,
    pub regions: usize,
    pub channels: usize,
    pub completion_queues: usize,
    pub queue_pairs: usize,
}

/// The number of events of each kind since the world began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Calls of `post_send`.
    pub posts: u64,
    /// Requests that those calls took.
    pub requests: u64,
    /// Completions of requests.
    pub send_completions: u64,
    /// Completions of receives.
    pub receive_completions: u64,
    /// Completions that a channel reported.
    pub events: u64,
    /// Attempts that found no receive at the peer.
    pub rnr_retries: u64,
    /// Attempts that did not reach the peer.
    pub transport_retries: u64,
    /// Completions for which the queue had no room, which is an error of the program.
    pub overruns: u64,
    /// Chunks that became visible before an earlier one of the same queue pair.
    pub overtakings: u64,
}

pub(crate) struct Device {
    pub(crate) config: DeviceConfig,
    pub(crate) c: *mut sys::ibv_device,
    pub(crate) active: Vec<bool>,
    pub(crate) failed: bool,
}

// SAFETY: the pointers are addresses of objects that are never freed.
unsafe impl Send for State {}

pub(crate) struct Context {
    pub(crate) device: usize,
    pub(crate) events: VecDeque<sys::ibv_async_event>,
    pub(crate) fd: c_int,
}

pub(crate) struct Region {
    pub(crate) c: usize,
    pub(crate) domain: usize,
    /// The address in this process.
    pub(crate) address: usize,
    /// The start address for adapters.
    pub(crate) iova: u64,
    pub(crate) length: usize,
    pub(crate) access: u32,
    /// The address and length of memory that was mapped for the region.
    pub(crate) mapping: Option<(usize, usize)>,
}

pub(crate) struct Channel {
    pub(crate) context: usize,
    pub(crate) fd: c_int,
    pub(crate) events: VecDeque<usize>,
}

pub(crate) struct Cq {
    pub(crate) context: usize,
    pub(crate) channel: Option<usize>,
    pub(crate) capacity: usize,
    pub(crate) entries: VecDeque<Completion>,
    /// Whether the next completion raises an event.
    pub(crate) armed: bool,
    pub(crate) unacknowledged: u32,
    pub(crate) failed: bool,
}

pub(crate) struct Completion {
    pub(crate) wc: sys::ibv_wc,
    pub(crate) queue: Queue,
    /// The number of places of the send or receive queue that polling this completion frees.
    pub(crate) frees: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Queue {
    Send,
    Receive,
}

pub(crate) struct Qp {
    pub(crate) c: *mut sys::ibv_qp,
    pub(crate) context: usize,
    pub(crate) device: usize,
    pub(crate) domain: usize,
    pub(crate) send_cq: usize,
    pub(crate) receive_cq: usize,
    pub(crate) cap: sys::ibv_qp_cap,
    pub(crate) all_signalled: bool,
    pub(crate) state: sys::ibv_qp_state,
    /// The attributes that `modify_qp` has set.
    pub(crate) attr: sys::ibv_qp_attr,
    /// Requests that have not completed, in the order of posting; those before `executed` wait to be acknowledged.
    pub(crate) sends: VecDeque<Request>,
    pub(crate) executed: usize,
    pub(crate) receives: VecDeque<Receive>,
    /// Places that are taken until a completion is polled.
    pub(crate) send_places: u32,
    pub(crate) receive_places: u32,
    /// The number of requests that completed without a completion since the last that had one.
    pub(crate) silent: u32,
    pub(crate) sequence: u64,
    /// Data that has arrived and is not visible yet, in the order of arrival.
    pub(crate) landings: VecDeque<Landing>,
    /// Asynchronous events of this queue pair that the program has and must give back.
    pub(crate) unacknowledged: u32,
    pub(crate) attempts: u32,
    pub(crate) attempts_since: Option<Instant>,
    /// The time at which the request at the head is tried again.
    pub(crate) again: Option<Instant>,
}

#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) sequence: u64,
    pub(crate) wr_id: u64,
    pub(crate) opcode: sys::ibv_wr_opcode,
    pub(crate) signalled: bool,
    pub(crate) source: Source,
    pub(crate) imm_data: u32,
    pub(crate) remote: u64,
    pub(crate) key: u32,
    pub(crate) add: u64,
    /// The number of chunks at the peer that must be visible before this request is acknowledged.
    pub(crate) awaited: usize,
    /// The status with which the request completes.
    pub(crate) status: sys::ibv_wc_status,
}

/// A receive: its number, and memory for the data of a send.
#[derive(Debug, Clone)]
pub(crate) struct Receive {
    pub(crate) wr_id: u64,
    pub(crate) places: Vec<sys::ibv_sge>,
}

#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// Data that was copied when the request was posted.
    Inline(Vec<u8>),
    /// Memory that is read when the request is carried out.
    Memory(Vec<sys::ibv_sge>),
}
