//! The hub's thread.

use std::{
    collections::HashMap,
    iter, mem,
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, Instant},
};

use mscclpp_net::{
    SystemError,
    event_loop::{EventLoop, Ready},
    links::{Admission, DataConnection},
    socket::Incoming,
};

use parking_lot::Mutex;

mod faults;

use super::{Command, HubState, SharedReceiver, Unfinished};
use crate::{
    adapter::{Adapter, Channel},
    blob::{EXCHANGE, Offer},
    complaint::Complaint,
    error::{Error, Result},
    receiver::{Beginning, LEFT_TO_WAITERS, Receiver, Served},
};
use faults::PortDown;

/// The longest time that a peer may take to describe its end of a queue.
const OFFER_LIMIT: Duration = Duration::from_secs(5);
/// The interval at which the thread checks that adapters are still there.
const LOOK: Duration = Duration::from_secs(2);
/// The most events of one source that are taken in a turn. A source with more stays ready for the next turn.
const EVENTS_AT_ONCE: usize = 16;
/// The longest time that the hub's thread waits for a receiver that a waiting thread is polling.
const ONE_LOOK: Duration = Duration::from_micros(50);
/// The interval at which the requests of dropped queues are checked; the next constant limits the whole time.
const DRAIN_PAUSE: Duration = Duration::from_millis(1);
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// The hub's thread with its state.
pub(super) struct Service {
    shared: Arc<HubState>,
    events: EventLoop<Command>,
    sources: HashMap<u64, EventSource>,
    /// The receivers, by the number that events of their completion queues carry.
    receivers: HashMap<u64, SharedReceiver>,
    next_receiver: u64,
    /// The numbers of receivers that have more to do in the next turn.
    unserved: Vec<u64>,
    /// The receivers that waiting threads serve; the next field is the time to check that they still do.
    left_to_waiters: Vec<u64>,
    left_until: Instant,
    draining: Vec<(Unfinished, Instant)>,
    ports_down: Vec<PortDown>,
    next_look: Instant,
}

/// The source that a token of the event loop stands for.
enum EventSource {
    Events(Arc<Adapter>),
    Completions(Arc<Channel>),
    Offer(Pending),
    /// The TCP connection of the receiver with this number.
    Stream(u64),
}

/// A peer that is opening a queue.
struct Pending {
    connection: Box<DataConnection>,
    admission: Admission,
    offer: Incoming<EXCHANGE>,
    deadline: Instant,
}

impl Service {
    pub(super) fn new(shared: Arc<HubState>) -> Result<Self, SystemError> {
        let events = EventLoop::new(shared.commands.clone())?;
        Ok(Self {
            shared,
            events,
            sources: HashMap::new(),
            receivers: HashMap::new(),
            next_receiver: 0,
            unserved: Vec::new(),
            left_to_waiters: Vec::new(),
            left_until: Instant::now(),
            draining: Vec::new(),
            ports_down: Vec::new(),
            next_look: Instant::now() + LOOK,
        })
    }

    pub(super) fn run(mut self) {
        loop {
            let ready = self.events.wait_or_retry(self.wake_at());
            let commands: Vec<_> = self.shared.commands.take().collect();
            for command in commands {
                if self.carry_out(command).is_break() {
                    return self.finish();
                }
            }
            for number in mem::take(&mut self.unserved) {
                self.serve(number);
            }
            for ready in ready {
                self.look_at(ready);
            }
            let now = Instant::now();
            if now >= self.left_until {
                for number in mem::take(&mut self.left_to_waiters) {
                    self.serve(number);
                }
            }
            self.drain(now);
            self.give_up_offers(now);
            self.give_up_ports(now);
            if now >= self.next_look {
                self.next_look = now + LOOK;
                self.give_up_removed();
            }
        }
    }

    /// Finishes the requests of dropped queues at the end of the thread, when nobody is left who could open queues.
    fn finish(&mut self) {
        while !self.draining.is_empty() {
            self.drain(Instant::now());
            std::thread::sleep(DRAIN_PAUSE);
        }
        // Receivers go last, because those requests may go to receivers of this process.
        self.shared.inbound.write().clear();
    }

    /// Drops queues that have nothing under way any more.
    fn drain(&mut self, now: Instant) {
        for (done, _) in self.draining.extract_if(.., |(go_on, deadline)| !go_on() || now >= *deadline) {
            // The queue may be the last owner of a GPU's memory. Freeing that may wait for kernels, which may wait
            // for this thread, so another thread does it.
            let freed =
                std::thread::Builder::new().name("mscclpp-ib-free".to_owned()).spawn(move || drop(done));
            if let Err(error) = freed {
                tracing::debug!(target: "mscclpp::conn", %error, "no thread to free memory on");
            }
        }
    }

    fn wake_at(&self) -> Option<Instant> {
        if !self.unserved.is_empty() {
            return Some(Instant::now());
        }
        let drain = (!self.draining.is_empty()).then(|| Instant::now() + DRAIN_PAUSE);
        let offers = self.sources.values().filter_map(|source| match source {
            EventSource::Offer(pending) => Some(pending.deadline),
            _ => None,
        });
        let left_to_waiters = (!self.left_to_waiters.is_empty()).then_some(self.left_until);
        let ports = self.ports_down.iter().map(|port| port.deadline);
        // Without an adapter there is nothing to check.
        let look = (!self.sources.is_empty()).then_some(self.next_look);
        drain.into_iter().chain(offers).chain(ports).chain(left_to_waiters).chain(look).min()
    }

    fn carry_out(&mut self, command: Command) -> ControlFlow<()> {
        match command {
            Command::Adapter(adapter) => {
                let watched = self.watch(&adapter);
                if let Err(error) = watched {
                    let error = mscclpp_net::Report(&error).to_string();
                    tracing::error!(target: "mscclpp::conn", device = adapter.name(), error, "cannot watch an adapter");
                }
            }
            Command::Accept(connection, admission) => self.accept(connection, admission),
            Command::CloseEndpoint(name) => {
                self.numbers_where(|receiver| receiver.leads_to(&name))
                    .into_iter()
                    .for_each(|it| self.close(it));
            }
            Command::Close(number) => self.close(number),
            Command::Drain(queue) => self.draining.push((queue, Instant::now() + DRAIN_LIMIT)),
            Command::Stop => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    fn watch(&mut self, adapter: &Arc<Adapter>) -> Result<()> {
        let token = self.events.add(&**adapter)?;
        self.sources.insert(token, EventSource::Events(adapter.clone()));
        Ok(())
    }

    /// Returns the channel of an adapter, which is made for the adapter's first receiver.
    fn channel(&mut self, adapter: &Arc<Adapter>) -> Result<Arc<Channel>> {
        let known = self.sources.values().find_map(|source| match source {
            EventSource::Completions(channel) if Arc::ptr_eq(channel.adapter(), adapter) => Some(channel),
            _ => None,
        });
        if let Some(channel) = known {
            return Ok(channel.clone());
        }
        let channel = Channel::new(adapter)?;
        let token = self.events.add(&*channel)?;
        self.sources.insert(token, EventSource::Completions(channel.clone()));
        Ok(channel)
    }

    fn accept(&mut self, connection: Box<DataConnection>, admission: Admission) {
        match self.events.add(&connection.stream) {
            Ok(token) => {
                let deadline = Instant::now() + OFFER_LIMIT;
                let pending = Pending { connection, admission, offer: Incoming::default(), deadline };
                self.sources.insert(token, EventSource::Offer(pending));
            }
            Err(error) => {
                let complaint = Complaint::NoQueue { errno: error.source.raw_os_error().unwrap_or(0) };
                admission.refuse(complaint.to_string(), error.to_string());
            }
        }
    }

    fn look_at(&mut self, ready: Ready) {
        match self.sources.get_mut(&ready.token) {
            Some(EventSource::Events(adapter)) => {
                let adapter = adapter.clone();
                for event in iter::from_fn(|| adapter.next_event()).take(EVENTS_AT_ONCE) {
                    self.handle_event(&adapter, event);
                }
            }
            Some(EventSource::Completions(channel)) => {
                let channel = channel.clone();
                for number in iter::from_fn(|| channel.next()).take(EVENTS_AT_ONCE) {
                    self.serve(number);
                }
            }
            Some(EventSource::Offer(pending)) => {
                // The offer if it is complete; `None` if the connection ended too early.
                let offer = match pending.offer.read(&pending.connection.stream) {
                    Ok(None) => return,
                    Ok(Some(offer)) => Some(*offer),
                    Err(_) => None,
                };
                if let Some(EventSource::Offer(pending)) = self.sources.remove(&ready.token) {
                    self.answer(ready.token, pending, offer);
                }
            }
            Some(EventSource::Stream(number)) => {
                let number = *number;
                // Nothing is ever sent on the stream, so it has ended.
                self.serve_and_close(number);
            }
            None => {}
        }
    }

    /// Serves a receiver and then waits for more: for an event, or, while waiting threads serve it and no event is
    /// needed, for a short time.
    fn serve(&mut self, number: u64) {
        let Some(receiver) = self.receivers.get(&number).cloned() else { return };
        // A waiting thread may hold the lock and lose the processor meanwhile. The other receivers must not wait for
        // that.
        let Some(mut receiver) = receiver.try_lock_for(ONE_LOOK) else {
            return self.leave_to_waiters(number);
        };
        let mut served = receiver.serve();
        if served == Served::All && receiver.is_polled_by_waiters(Instant::now()) {
            self.leave_to_waiters(number);
        } else if served == Served::All {
            // The queue is armed before the last poll, so a completion after that poll raises an event.
            receiver.arm();
            served = receiver.serve();
        }
        drop(receiver);
        match served {
            Served::All => {}
            Served::Some => self.unserved.push(number),
            Served::Over => self.close(number),
        }
    }

    /// Returns the numbers of the receivers for which `is` is true.
    fn numbers_where(&self, is: impl Fn(&Receiver) -> bool) -> Vec<u64> {
        self.receivers.iter().filter(|(_, receiver)| is(&receiver.lock())).map(|(n, _)| *n).collect()
    }

    /// Leaves a receiver to waiting threads, and checks it again after [`LEFT_TO_WAITERS`].
    fn leave_to_waiters(&mut self, number: u64) {
        if self.left_to_waiters.is_empty() {
            self.left_until = Instant::now() + LEFT_TO_WAITERS;
        }
        if !self.left_to_waiters.contains(&number) {
            self.left_to_waiters.push(number);
        }
    }

    /// Serves a receiver a last time, and closes it.
    fn serve_and_close(&mut self, number: u64) {
        if let Some(receiver) = self.receivers.get(&number) {
            receiver.lock().serve();
        }
        self.close(number);
    }

    fn close(&mut self, number: u64) {
        let Some(receiver) = self.receivers.remove(&number) else { return };
        self.shared.inbound.write().retain(|_, receivers| {
            receivers.retain(|(of, _)| *of != number);
            !receivers.is_empty()
        });
        self.sources.retain(|_, source| !matches!(source, EventSource::Stream(of) if *of == number));
        // The adapter's objects are destroyed here, and not under the lock above, for which waiting threads would wait.
        drop(receiver);
    }

    fn answer(&mut self, token: u64, pending: Pending, offer: Option<[u8; EXCHANGE]>) {
        let Pending { mut connection, admission, .. } = pending;
        let refuse = |admission: Admission, complaint: Complaint, reason: String| {
            tracing::warn!(target: "mscclpp::conn", reason, "a peer's queue is refused");
            admission.refuse(complaint.to_string(), reason);
        };
        // The connection is closed when it is dropped, which ends its watch.
        let Some(offer) = offer else { return };
        let offer = match Offer::open(&mut connection.inbound, &offer) {
            Ok(offer) => offer,
            Err(error) => return refuse(admission, Complaint::Offer, error.to_string()),
        };
        let side = self.shared.endpoints.lock().get(admission.endpoint()).cloned();
        // If the endpoint was closed meanwhile, the link tells the peer so.
        let Some(side) = side else { return };
        let number = self.next_receiver;
        self.next_receiver += 1;
        let words = self.shared.words.clone();
        // The stream stays watched under its token if the receiver can be made.
        let receiver = self.channel(&side.adapter).and_then(|channel| {
            Receiver::new(Beginning { side, offer, words, channel, number }, *connection)
        });
        match receiver {
            Ok(mut receiver) => {
                receiver.set_admission(admission);
                let ends = receiver.endpoints().filter(|_| receiver.takes_signals());
                let receiver = Arc::new(Mutex::new(receiver));
                if let Some(ends) = ends {
                    self.shared.inbound.write().entry(ends).or_default().push((number, receiver.clone()));
                }
                self.sources.insert(token, EventSource::Stream(number));
                self.receivers.insert(number, receiver);
                // An event that came before the queue was known here was ignored, so the receiver is served now.
                self.serve(number);
            }
            Err(error) => {
                let errno = match &error {
                    Error::Verbs { source, .. } | Error::System(SystemError { source, .. }) => {
                        source.raw_os_error().unwrap_or(0)
                    }
                    _ => 0,
                };
                let reason = mscclpp_net::Report(&error).to_string();
                refuse(admission, Complaint::NoQueue { errno }, reason);
            }
        }
    }

    fn give_up_offers(&mut self, now: Instant) {
        // Closing a connection ends its watch.
        self.sources
            .retain(|_, source| !matches!(source, EventSource::Offer(pending) if pending.deadline <= now));
    }
}
