//! The receiving end of a queue: its queue pair, and, if signals come as immediate data, the code that stores tokens.

mod waiter_polls;

use std::{
    io::Write,
    mem,
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use mscclpp_net::links::{self, Admission, DataConnection};
use mscclpp_verbs_sys as sys;

use crate::{
    adapter::{Access, Channel, Completion, Cq, Mr, QpSizes, QueuePair, random_psn},
    blob::{Answer, Offer},
    complaint::Complaint,
    error::{Error, Result},
    ordering::{SignalMode, TokenPlan},
    select::Select,
    side::{EndpointPair, Side},
    status::Status,
    words::WordRegions,
};
use waiter_polls::WaiterPolls;

pub(crate) use waiter_polls::LEFT_TO_WAITERS;

/// A buffer for one message.
type Place = [AtomicU64; 4];

/// The receiving end of a queue.
pub(crate) struct Receiver {
    // Fields are dropped in this order: the queue pair before its completion queue, both before the memory that they
    // write, and registrations before their memory.
    qp: QueuePair,
    cq: Cq,
    memory: Option<Memory>,
    /// A buffer for completions, which is empty except while they are handled; it is kept to reuse its memory.
    taken: Vec<Completion>,
    side: Side,
    selected: Option<Select>,
    /// Whether data is made visible to the GPU before a token is stored.
    flushes: bool,
    credit: (u64, u32),
    /// The number of receives that were posted again. `told` is how many of these the peer was notified of, and
    /// `is_telling` whether a notification is under way.
    again: u64,
    told: u64,
    is_telling: bool,
    waiter_polls: WaiterPolls,
    /// Whether the queue has ended. Completions behind the end do not count: what came before them may have been
    /// lost.
    is_over: bool,
    words: Arc<WordRegions>,
    /// The TCP connection over which the queue was opened, which is closed with it.
    _stream: TcpStream,
    admission: Option<Admission>,
}

/// The memory into which the adapter writes messages, and from which it reads counts.
struct Memory {
    mr: Mr,
    count_mr: Mr,
    places: Box<[Place]>,
    count: Box<AtomicU64>,
}

/// The result of serving a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Served {
    /// Nothing was left to do.
    All,
    /// More may be there, but other receivers have their turn first.
    Some,
    /// The queue has ended.
    Over,
}

/// The most times that a receiver's completions are polled before others have their turn: a peer that sends without
/// pause must not occupy the thread.
const POLLS_AT_ONCE: usize = 64;

/// The id of the completion that a count was written. A completion of a receive carries the number of its place.
const COUNT: u64 = u64::MAX;

/// The parts from which a receiver is made.
pub(crate) struct Beginning {
    pub(crate) side: Side,
    pub(crate) offer: Offer,
    pub(crate) words: Arc<WordRegions>,
    pub(crate) channel: Arc<Channel>,
    /// The number that events on the channel carry.
    pub(crate) number: u64,
}

impl Receiver {
    /// Makes this end of the queue, and answers the peer.
    pub(crate) fn new(
        Beginning { side, offer, words, channel, number }: Beginning,
        connection: DataConnection,
    ) -> Result<Self> {
        let most = side.adapter.limits().max_qp_wr.min(side.adapter.limits().max_cqe / 2).max(2);
        let receives = if offer.immediates { side.config.max_recv_wr.clamp(2, most) } else { 0 };
        // The additional entry is for the count.
        let cq = Cq::new(&side.adapter, receives + 1, receives.max(1), Some((&channel, number)))?;
        let sizes = QpSizes { send: 1, receive: receives, inline: 0 };
        let pkey_index = side.reliability.pkey_index;
        let mut qp = QueuePair::new(&side.adapter, [&cq; 2], sizes, &side.port, pkey_index, random_psn()?)?;
        let memory = match receives {
            0 => None,
            _ => Some(Memory::new(&side, receives)?),
        };
        if let Some(memory) = &memory {
            for place in 0..receives {
                memory.post(&mut qp, place.into())?;
            }
            cq.arm()?;
        }
        qp.connect(&side.port, &offer.path, &side.reliability)?;
        let answer = Answer { path: qp.path(&side.port), receives }.seal(&connection.outbound);
        // The answer fits the buffer of a new socket. If the peer has gone meanwhile, the end of the stream shows
        // that.
        let _ = (&connection.stream).write(&answer);
        let flushes = side.tokens(SignalMode::Immediates) == TokenPlan::OnHostAfterFlush;
        Ok(Self {
            qp,
            cq,
            memory,
            taken: Vec::new(),
            side,
            selected: None,
            flushes,
            credit: offer.credit,
            again: 0,
            told: 0,
            is_telling: false,
            waiter_polls: WaiterPolls::new(),
            is_over: false,
            words,
            _stream: connection.stream,
            admission: None,
        })
    }

    /// Stores the admission of the connection over which the peer opened the queue.
    pub(crate) fn set_admission(&mut self, admission: Admission) {
        self.admission = Some(admission);
    }

    /// Returns the number of the queue pair.
    pub(crate) fn qpn(&self) -> u32 {
        self.qp.number()
    }

    /// Returns whether the queue delivers tokens.
    pub(crate) fn takes_signals(&self) -> bool {
        self.memory.is_some()
    }

    /// Returns the endpoints that the queue connects.
    pub(crate) fn endpoints(&self) -> Option<EndpointPair> {
        self.admission.as_ref().map(|of| EndpointPair { ours: *of.endpoint(), theirs: *of.peer() })
    }

    pub(crate) fn leads_to(&self, endpoint: &links::Name) -> bool {
        self.admission.as_ref().is_some_and(|admission| admission.endpoint() == endpoint)
    }

    pub(crate) fn side(&self) -> &Side {
        &self.side
    }

    /// Handles what has come, but only so much that other queues are not delayed. If the queue is over and the peer
    /// is to blame, the peer has been notified of the reason.
    pub(crate) fn serve(&mut self) -> Served {
        self.serve_with(POLLS_AT_ONCE)
    }

    fn serve_with(&mut self, polls: usize) -> Served {
        if self.is_over {
            return Served::Over;
        }
        match self.take_some(polls) {
            Ok(served) => served,
            Err(complaint) => {
                self.is_over = true;
                if let Some(complaint) = complaint {
                    self.refuse(complaint);
                }
                Served::Over
            }
        }
    }

    /// Serves the receiver for a thread that waits for a token. It polls once, because the thread calls again if its
    /// token has not come. The poll that finds the queue over returns [`Served::Over`] and later ones do not, so the
    /// caller must pass that on to the hub's thread.
    pub(crate) fn serve_for_waiter(&mut self) -> Served {
        self.waiter_polls.add();
        if self.is_over { Served::All } else { self.serve_with(1) }
    }

    /// Returns whether waiting threads have served the receiver often lately. Only the hub's thread calls this.
    pub(crate) fn is_polled_by_waiters(&mut self, now: Instant) -> bool {
        self.waiter_polls.are_frequent(now)
    }

    /// Refuses what came, and notifies the peer of the reason.
    pub(crate) fn refuse(&mut self, complaint: Complaint) {
        if let Some(admission) = self.admission.take() {
            let reason =
                format!("over queue pair {} of {}: {complaint}", self.qp.number(), self.side.adapter.name());
            admission.refuse(complaint.to_string(), reason);
        }
    }

    fn take_some(&mut self, polls: usize) -> Result<Served, Option<Complaint>> {
        for _ in 0..polls {
            let mut taken = mem::take(&mut self.taken);
            taken.clear();
            let polled = self.cq.poll().map(|completions| taken.extend(completions));
            polled.map_err(|error| self.give_up(&error))?;
            let all = taken.iter().try_for_each(|completion| self.take(completion));
            let is_empty = taken.is_empty();
            self.taken = taken;
            all?;
            if is_empty {
                return Ok(Served::All);
            }
            self.report_receives()?;
        }
        Ok(Served::Some)
    }

    /// Reports the queue as broken because the adapter failed.
    fn give_up(&mut self, error: &Error) -> Option<Complaint> {
        self.report_broken(&mscclpp_net::Report(error).to_string());
        None
    }

    /// Reports that nothing will come over the queue any more. The peer may never notice by itself, because it may
    /// not send again, so it is notified; and what this side waits for from it ends too.
    pub(crate) fn report_broken(&mut self, reason: &str) {
        let device = self.side.adapter.name();
        tracing::warn!(target: "mscclpp::conn", device, reason, "a queue is given up");
        if let Some(admission) = self.admission.take() {
            admission.report_broken(format!("queue pair {} of {device} failed: {reason}", self.qp.number()));
        }
    }

    fn take(&mut self, completion: &Completion) -> Result<(), Option<Complaint>> {
        if Status(completion.status) != Status::SUCCESS {
            // A flushed receive is a failure, too: receives are flushed only if this queue pair has failed. Neither
            // destroying it here nor the end of the peer's queue pair flushes them.
            let (status, remedy) = Status(completion.status).explain();
            let vendor = completion.vendor;
            self.report_broken(&format!(
                "a receive failed with {status} (vendor code {vendor:#x}): {remedy}"
            ));
            return Err(None);
        }
        if completion.id == COUNT {
            self.is_telling = false;
            return Ok(());
        }
        let select = self.read(completion).ok_or(Complaint::Message)?;
        if self.flushes {
            self.side.flush_gpu().map_err(|error| self.give_up(&error))?;
        }
        let Select { region, offset, value } = select;
        self.words.raise(region, offset, value)?;
        self.selected = Some(select);
        let Some(memory) = &self.memory else { return Err(Some(Complaint::Message)) };
        memory.post(&mut self.qp, completion.id).map_err(|error| self.give_up(&error))?;
        self.again += 1;
        Ok(())
    }

    /// Returns the token and value that a completed receive asks to store.
    fn read(&self, completion: &Completion) -> Option<Select> {
        if completion.flags & sys::IBV_WC_WITH_IMM != 0 {
            let selected = self.selected?;
            return Some(Select { value: selected.next(completion.immediate), ..selected });
        }
        let place = self.memory.as_ref()?.places.get(usize::try_from(completion.id).ok()?)?;
        if completion.bytes as usize != size_of::<Place>() {
            return None;
        }
        // Relaxed: the adapter wrote the words before it reported the completion, which was read from its queue
        // since.
        Select::decode(std::array::from_fn(|i| place[i].load(Ordering::Relaxed)))
    }

    /// Notifies the peer how many receives were posted again, once there are many.
    fn report_receives(&mut self) -> Result<(), Option<Complaint>> {
        let Some(memory) = &self.memory else { return Ok(()) };
        if self.is_telling || (self.again - self.told) * 2 < memory.places.len() as u64 {
            return Ok(());
        }
        memory.count.store(self.again, Ordering::Relaxed);
        let from = ((&raw const *memory.count).expose_provenance() as u64, memory.count_mr.lkey());
        // SAFETY: the count is registered, and changes only once this write has completed.
        unsafe { self.qp.post_word(COUNT, from, self.credit) }.map_err(|error| self.give_up(&error))?;
        (self.told, self.is_telling) = (self.again, true);
        Ok(())
    }

    /// Arms the queue, so that the next message raises an event. If that fails, the queue is over.
    pub(crate) fn arm(&mut self) {
        if let Err(error) = self.cq.arm() {
            self.give_up(&error);
            self.is_over = true;
        }
    }
}

impl Memory {
    fn new(side: &Side, receives: u32) -> Result<Self> {
        let places: Box<[Place]> = (0..receives).map(|_| Place::default()).collect();
        let count = Box::new(AtomicU64::new(0));
        let at = |start: usize, len: usize, access| {
            // SAFETY: the boxes are dropped after their registrations, do not move, and consist of atomics.
            unsafe { Mr::of_host(&side.adapter, start as u64, len as u64, access) }
        };
        let mr = at(places.as_ptr().expose_provenance(), size_of_val(&*places), Access::Strict)?;
        let count_mr = at((&raw const *count).expose_provenance(), size_of::<AtomicU64>(), Access::Source)?;
        Ok(Self { mr, count_mr, places, count })
    }

    fn post(&self, qp: &mut QueuePair, place: u64) -> Result<()> {
        let address = (&raw const self.places[place as usize]).expose_provenance() as u64;
        // SAFETY: the place is registered for local writes, and no other receive uses it: one is posted for each
        // place at first, and again when the earlier one has completed and was read.
        unsafe { qp.post_receive(place, address, size_of::<Place>() as u32, self.mr.lkey()) }
    }
}
