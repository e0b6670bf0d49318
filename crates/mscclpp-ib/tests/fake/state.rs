//! The state of the simulated adapters. One lock guards all of it.

use std::{
    collections::{BTreeMap, VecDeque},
    ffi::c_int,
    fmt::Write as _,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use mscclpp_verbs_sys as sys;

use super::{
    config::{Config, DeviceConfig},
    faults::Faults,
    landing::Landing,
};

/// All adapters of one [`super::Fake`]. It is never freed, so that a test's use of an object after the end is noticed
/// and not undefined.
pub(super) struct World {
    state: Mutex<State>,
    /// Notified when there may be something to do.
    pub(super) work: Condvar,
}

impl World {
    pub(super) fn new(config: Config) -> &'static Self {
        Box::leak(Box::new(Self { state: Mutex::new(State::new(config)), work: Condvar::new() }))
    }

    /// Locks the state, also after a test panicked with the lock: that test has reported its failure, and others go
    /// on.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct State {
    pub(super) config: Config,
    pub(super) random: fastrand::Rng,
    pub(super) devices: Vec<Device>,
    pub(super) contexts: BTreeMap<usize, Context>,
    /// Protection domains by address, each with its context.
    pub(super) domains: BTreeMap<usize, usize>,
    /// Regions by key; the local and the remote key are the same number.
    pub(super) regions: BTreeMap<u32, Region>,
    pub(super) channels: BTreeMap<usize, Channel>,
    pub(super) cqs: BTreeMap<usize, Cq>,
    pub(super) qps: BTreeMap<u32, Qp>,
    pub(super) faults: Faults,
    pub(super) counters: Counters,
    /// Misuses of the library by the program.
    pub(super) misuse: Vec<String>,
    /// Reasons for refused calls that a program may try.
    pub(super) refusals: Vec<String>,
    pub(super) ended: bool,
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
    pub(super) fn number(&mut self) -> u32 {
        self.numbers += 1 + self.random.u32(..16);
        self.numbers
    }

    pub(super) fn device(&self, context: usize) -> usize {
        self.contexts.get(&context).map_or(0, |context| context.device)
    }

    /// Notes a misuse of the library, and returns the errno for it.
    pub(super) fn misused(&mut self, what: impl Into<String>) -> c_int {
        self.misuse.push(what.into());
        libc::EINVAL
    }

    /// Notes why a call is refused, and returns the errno for it.
    pub(super) fn refused(&mut self, why: impl Into<String>) -> c_int {
        self.refusals.push(why.into());
        libc::EINVAL
    }

    pub(super) fn describe(&self) -> String {
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

    pub(super) fn live(&self) -> Live {
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
pub(crate) struct Live {
    pub(crate) contexts: usize,
    pub(crate) domains: usize,
    pub(crate) regions: usize,
    pub(crate) channels: usize,
    pub(crate) completion_queues: usize,
    pub(crate) queue_pairs: usize,
}

/// The number of events of each kind since the world began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counters {
    /// Calls of `post_send`.
    pub(crate) posts: u64,
    /// Requests that those calls took.
    pub(crate) requests: u64,
    /// Completions, of requests and of receives, by the queue that they went to.
    pub(crate) send_completions: u64,
    pub(crate) receive_completions: u64,
    /// Completions that a channel reported.
    pub(crate) events: u64,
    /// Attempts that found no receive at the peer.
    pub(crate) rnr_retries: u64,
    /// Attempts that did not reach the peer.
    pub(crate) transport_retries: u64,
    /// Completions for which the queue had no room, which is an error of the program.
    pub(crate) overruns: u64,
    /// Chunks that became visible before an earlier one of the same queue pair.
    pub(crate) overtakings: u64,
}

pub(super) struct Device {
    pub(super) config: DeviceConfig,
    pub(super) c: *mut sys::ibv_device,
    pub(super) active: Vec<bool>,
    pub(super) failed: bool,
}

// SAFETY: the pointers are addresses of objects that are never freed.
unsafe impl Send for State {}

pub(super) struct Context {
    pub(super) device: usize,
    pub(super) events: VecDeque<sys::ibv_async_event>,
    pub(super) fd: c_int,
}

pub(super) struct Region {
    pub(super) c: usize,
    pub(super) domain: usize,
    /// The address in this process.
    pub(super) address: usize,
    /// The start address for adapters.
    pub(super) iova: u64,
    pub(super) length: usize,
    pub(super) access: u32,
    /// The address and length of memory that was mapped for the region.
    pub(super) mapping: Option<(usize, usize)>,
}

pub(super) struct Channel {
    pub(super) context: usize,
    pub(super) fd: c_int,
    pub(super) events: VecDeque<usize>,
}

pub(super) struct Cq {
    pub(super) context: usize,
    pub(super) channel: Option<usize>,
    pub(super) capacity: usize,
    pub(super) entries: VecDeque<Completion>,
    /// The completions that raise the next event.
    pub(super) armed: Option<Notify>,
    pub(super) unacknowledged: u32,
    pub(super) overrun: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notify {
    Any,
    Solicited,
}

pub(super) struct Completion {
    pub(super) wc: sys::ibv_wc,
    pub(super) solicited: bool,
    pub(super) queue: Queue,
    /// The number of places of the send or receive queue that polling this completion frees.
    pub(super) frees: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    Send,
    Receive,
}

pub(super) struct Qp {
    pub(super) c: *mut sys::ibv_qp,
    pub(super) context: usize,
    pub(super) device: usize,
    pub(super) domain: usize,
    pub(super) send_cq: usize,
    pub(super) receive_cq: usize,
    pub(super) cap: sys::ibv_qp_cap,
    pub(super) all_signalled: bool,
    pub(super) state: sys::ibv_qp_state,
    /// The attributes that `modify_qp` has set.
    pub(super) attr: sys::ibv_qp_attr,
    /// Requests that have not completed, in the order of posting; those before `executed` wait to be acknowledged.
    pub(super) sends: VecDeque<Request>,
    pub(super) executed: usize,
    pub(super) receives: VecDeque<Receive>,
    /// Places that are taken until a completion is polled.
    pub(super) send_places: u32,
    pub(super) receive_places: u32,
    /// The number of requests that completed without a completion since the last that had one.
    pub(super) silent: u32,
    pub(super) sequence: u64,
    /// Data that has arrived and is not visible yet, in the order of arrival.
    pub(super) landings: VecDeque<Landing>,
    /// Asynchronous events of this queue pair that the program has and must give back.
    pub(super) unacknowledged: u32,
    pub(super) attempts: u32,
    pub(super) attempts_since: Option<Instant>,
    /// The time at which the request at the head is tried again.
    pub(super) again: Option<Instant>,
}

#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) sequence: u64,
    pub(super) wr_id: u64,
    pub(super) opcode: sys::ibv_wr_opcode,
    pub(super) signalled: bool,
    pub(super) solicited: bool,
    pub(super) source: Source,
    pub(super) imm_data: u32,
    pub(super) remote: u64,
    pub(super) key: u32,
    pub(super) add: u64,
    /// The number of chunks at the peer that must be visible before this request is acknowledged.
    pub(super) awaited: usize,
    /// The status with which the request completes.
    pub(super) status: sys::ibv_wc_status,
}

/// A receive: its number, and memory for the data of a send.
#[derive(Debug, Clone)]
pub(super) struct Receive {
    pub(super) wr_id: u64,
    pub(super) places: Vec<sys::ibv_sge>,
}

#[derive(Debug, Clone)]
pub(super) enum Source {
    /// Data that was copied when the request was posted.
    Inline(Vec<u8>),
    /// Memory that is read when the request is carried out.
    Memory(Vec<sys::ibv_sge>),
}
