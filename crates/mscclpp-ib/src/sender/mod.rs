//! A queue of operations to a peer: the end of a queue pair that sends.
//!
//! # Invariants
//! 1. Requests are numbered as they are posted, and complete in that order. As many can be under way as the completion
//!    queue has entries, so it never runs over, not even when everything fails at once.
//! 2. An operation that was taken is posted, or waits in the plan as the rest of one that was begun. One that was not
//!    taken has left no trace: neither in the plan, nor in what the peer's numbers are counted from.
//! 3. A request that needs a receive is only posted if the peer has one: it says how many it has posted again.
//! 4. What a request reads is kept until it has completed.

mod plan;
mod request;

use std::{
    collections::VecDeque,
    io::{self, Write},
    net::TcpStream,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use mscclpp_core::{
    Result as CoreResult,
    provider::{Operation, Queue, Registration, RemoteRegion, RouteId},
};
use mscclpp_net::{SystemCall, socket::Incoming};

use crate::{
    adapter::{Completion, Cq, QpSizes, QueuePair, random_psn},
    blob::{Answer, EXCHANGE, Offer},
    error::{Error, Result},
    hub::{Command, Hub},
    link::{IbLink, LinkState},
    region::{LocalRegion, PeerRegion, Source},
    status::Status,
};
use plan::{How, Plan, Route};
use request::Chain;

/// How many bytes a request is asked to carry itself.
const INLINE: u32 = 64;
/// How long the peer may take to make its end of a queue.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// The queue that the core has. What is under way when it is dropped is left to the hub's thread.
pub(crate) struct SendQueue {
    /// There until it is dropped.
    sender: Option<Box<Sender>>,
    hub: Arc<Hub>,
}

/// A queue pair's sending end.
pub(crate) struct Sender {
    // A queue pair goes before its completion queue, both before what they read.
    qp: QueuePair,
    cq: Cq,
    chain: Chain,
    plan: Plan,
    routes: Vec<Option<Route>>,
    /// What requests up to a number read, of routes that were released.
    released: VecDeque<(u64, Arc<Source>)>,
    link: Arc<LinkState>,
    remote: String,
    /// How many requests were posted, and have completed.
    posted: u64,
    completed: u64,
    capacity: u32,
    /// How many receives the peer has.
    receives: u32,
    reached: u64,
    /// The names of the requests under way, for messages.
    names: Box<[&'static str]>,
    /// Its end is that of the peer's end of the queue.
    stream: TcpStream,
}

impl SendQueue {
    /// Makes both ends of a queue. Blocks, for at most about 20 s.
    pub(crate) fn open(link: &IbLink) -> Result<Self> {
        Ok(Self { sender: Some(Box::new(Sender::open(link)?)), hub: link.hub().clone() })
    }

    fn sender(&mut self) -> Result<&mut Sender> {
        self.sender.as_deref_mut().ok_or(Error::Foreign("the queue"))
    }
}

impl Sender {
    fn open(ib_link: &IbLink) -> Result<Self> {
        let link = ib_link.state();
        let (adapter, config) = (link.adapter(), link.config());
        let limits = adapter.limits();
        let capacity = [Some(config.max_send_wr), Some(config.max_cq_size), link.max_waiting()]
            .into_iter()
            .flatten()
            .fold(limits.max_qp_wr.min(limits.max_cqe), u32::min)
            .max(1);
        let cq = Cq::new(adapter, capacity, config.max_cq_poll_num.min(capacity), None)?;
        let sizes = QpSizes { send: capacity, receive: 0, inline: INLINE };
        let psn = random_psn()?;
        let qp = QueuePair::new(adapter, &cq, sizes, link.port(), link.reliability().pkey_index, psn)?;
        let longest = config.max_wr_per_send.min(capacity);
        let chain = Chain::new(adapter, longest, capacity, qp.inline())?;
        let mut connection = ib_link.open_data()?;
        let path = qp.path(link.port());
        let offer = Offer { path, immediates: link.immediates(), credit: chain.credit_place() };
        let written =
            connection.stream.write(&offer.seal(&connection.outbound)).during("offering a queue")?;
        if written != EXCHANGE {
            return Err(io::Error::from(io::ErrorKind::WriteZero)).during("offering a queue")?;
        }
        let bytes = Self::await_answer(ib_link, &connection.stream)?;
        let answer = Answer::open(&mut connection.inbound, &bytes)?;
        qp.connect(link.port(), &answer.path, link.reliability())?;
        let how =
            How { immediates: link.immediates(), quarter: (capacity / 4).max(1), inline: chain.inline() };
        tracing::debug!(
            target: "mscclpp::conn", device = adapter.name(), from = qp.number(), to = answer.path.qpn, capacity,
            inline = chain.inline(), immediates = how.immediates, "queue pair connected"
        );
        Ok(Self {
            remote: format!("GID {}, queue pair {}", answer.path.gid, answer.path.qpn),
            qp,
            cq,
            chain,
            plan: Plan::new(how),
            routes: Vec::new(),
            released: VecDeque::new(),
            link: link.clone(),
            posted: 0,
            completed: 0,
            capacity,
            receives: answer.receives,
            reached: 0,
            names: vec![""; capacity as usize].into(),
            stream: connection.stream,
        })
    }

    fn await_answer(link: &IbLink, stream: &TcpStream) -> Result<[u8; EXCHANGE]> {
        let mut answer = Incoming::<EXCHANGE>::default();
        let began = Instant::now();
        loop {
            match answer.read(stream) {
                Ok(Some(answer)) => return Ok(*answer),
                Ok(None) if began.elapsed() > ANSWER_LIMIT => {
                    return Err(Error::Silent { what: "make its end of a queue", after: ANSWER_LIMIT });
                }
                Ok(None) => thread::sleep(Duration::from_micros(50)),
                Err(error) => {
                    // The link says why, in a moment.
                    link.suspect(format!("it closed a queue that was being opened ({error})"));
                    return Err(error).during("waiting for the peer's end of a queue")?;
                }
            }
        }
    }

    fn under_way(&self) -> usize {
        (self.posted - self.completed) as usize
    }

    fn is_idle(&self) -> bool {
        self.under_way() == 0 && self.plan.items.is_empty()
    }

    /// Posts what is planned, as far as there is room, and says how much that was.
    fn post(&mut self) -> Result<usize> {
        let mut posted = 0;
        while !self.plan.items.is_empty() && self.under_way() < self.capacity as usize {
            let room = self.capacity as usize - self.under_way();
            let items = self.plan.items.iter().take(room.min(self.chain.longest())).copied();
            let (first, len) = self.chain.make(items, self.posted);
            // SAFETY: the chain was just made; sources are kept by routes and `released`, places and words by the chain, until
            // their requests have completed, and longer than the queue pair.
            let refused = unsafe { self.qp.post_send(first) };
            let taken = refused.map_or(len, |(bad, _)| self.chain.before(bad).min(len));
            for item in self.plan.items.drain(..taken) {
                self.names[self.posted as usize % self.names.len()] = item.request.name();
                self.posted += 1;
            }
            posted += taken;
            match refused {
                None => {}
                // The adapter's own queue is full for now.
                Some((_, libc::ENOMEM)) if self.under_way() > 0 => break,
                Some((_, errno)) => {
                    let device = self.qp.adapter().name().to_owned();
                    let call = format!("ibv_post_send towards {}", self.remote);
                    return Err(Error::Verbs {
                        device,
                        call,
                        hint: "",
                        source: io::Error::from_raw_os_error(errno),
                    });
                }
            }
        }
        Ok(posted)
    }

    /// Takes what has completed.
    fn reap(&mut self) -> Result<()> {
        if self.under_way() == 0 {
            return Ok(());
        }
        let mut failed = None;
        for completion in self.cq.poll()? {
            match Status(completion.status) {
                // Those before it, which did not tell, have completed too.
                Status::SUCCESS => self.completed = self.completed.max(completion.id + 1),
                Status::FLUSHED => failed = failed.or(Some(completion)),
                _ => {
                    failed = Some(completion);
                    break;
                }
            }
        }
        if let Some(completion) = failed {
            return Err(self.explain(&completion));
        }
        while self.released.front().is_some_and(|(until, _)| *until <= self.completed) {
            self.released.pop_front();
        }
        Ok(())
    }

    fn explain(&self, completion: &Completion) -> Error {
        let (status, remedy) = Status(completion.status).explain();
        Error::Completion {
            opcode: self.names[completion.id as usize % self.names.len()],
            status,
            vendor: completion.vendor,
            local: format!(
                "{} port {}, GID {}, queue pair {}",
                self.qp.adapter().name(),
                self.link.port().number,
                self.link.port().gid.gid,
                self.qp.number()
            ),
            remote: self.remote.clone(),
            remedy,
        }
    }

    /// Fails the connection with the error, or gives what it failed with before: later errors say nothing of the cause.
    fn failed(&self, error: Error) -> mscclpp_core::Error {
        self.link.fail(error);
        self.link.check().err().unwrap_or_else(|| self.link.closed())
    }

    fn submit(&mut self, batch: &[Operation]) -> Result<usize> {
        if self.under_way() * 2 >= self.capacity as usize {
            self.reap()?;
        }
        self.post()?;
        if !self.plan.items.is_empty() {
            return Ok(0);
        }
        let room = self.capacity as usize - self.under_way();
        // Acquire: it pairs with nothing of this process. What it counts is the peer's word.
        let messages = self.chain.credit().load(Ordering::Acquire) + u64::from(self.receives);
        self.plan.add(batch, &self.routes, self.posted, room, messages, self.under_way() == 0);
        match self.post() {
            Ok(posted) => Ok(self.plan.taken(posted)),
            Err(error) => {
                self.plan.taken(0);
                Err(error)
            }
        }
    }

    fn progress(&mut self) -> Result<u64> {
        self.reap()?;
        self.post()?;
        while let Some((ticket, until)) = self.plan.tickets.front().copied()
            && until <= self.completed
        {
            self.reached = ticket;
            self.plan.tickets.pop_front();
        }
        Ok(self.reached)
    }

    /// Goes on with what is under way. Whether there is something left that can still be done.
    pub(crate) fn drain(&mut self) -> bool {
        self.link.check().is_ok() && self.progress().is_ok() && !self.is_idle() && !self.peer_has_closed()
    }

    /// Whether the peer's end of the queue is gone. The link tells that too, as long as somebody has it.
    fn peer_has_closed(&self) -> bool {
        match self.stream.peek(&mut [0]) {
            Ok(_) => true,
            Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        }
    }

    fn prepare(
        &mut self,
        route: RouteId,
        dst: &Arc<dyn RemoteRegion>,
        src: Option<&Arc<dyn Registration>>,
    ) -> Result<()> {
        let PeerRegion(to) = *PeerRegion::of(&**dst)?;
        let from = match src {
            Some(src) => {
                let local = LocalRegion::of(&**src)?;
                if !Arc::ptr_eq(local.adapter(), self.link.adapter()) {
                    return Err(Error::Incompatible(format!(
                        "the source is registered with {}, the connection uses {}; register it for the connection's transport",
                        local.adapter().name(),
                        self.link.adapter().name()
                    )));
                }
                Some(local.source()?)
            }
            None if !to.address.is_multiple_of(8) => {
                return Err(Error::Incompatible(
                    "the peer's memory does not begin at a multiple of 8 bytes, so its words cannot be updated".to_owned(),
                ));
            }
            None => None,
        };
        self.release(route);
        let index = route.index();
        if self.routes.len() <= index {
            self.routes.resize_with(index + 1, || None);
        }
        self.routes[index] = Some(Route { to, from });
        Ok(())
    }

    fn release(&mut self, route: RouteId) {
        let released = self.routes.get_mut(route.index()).and_then(Option::take);
        if let Some(source) = released.and_then(|route| route.from) {
            let until = self.posted + self.plan.items.len() as u64;
            if until > self.completed {
                self.released.push_back((until, source));
            }
        }
    }
}

impl Queue for SendQueue {
    fn prepare(
        &mut self,
        route: RouteId,
        dst: &Arc<dyn RemoteRegion>,
        src: Option<&Arc<dyn Registration>>,
    ) -> CoreResult<()> {
        let transport = self.transport();
        let prepared = self.sender().and_then(|sender| sender.prepare(route, dst, src));
        prepared.map_err(|error| error.over(transport))
    }

    fn release(&mut self, route: RouteId) {
        if let Ok(sender) = self.sender() {
            sender.release(route);
        }
    }

    unsafe fn submit(&mut self, batch: &[Operation]) -> CoreResult<usize> {
        self.attempt(|sender| sender.submit(batch))
    }

    fn progress(&mut self) -> CoreResult<u64> {
        self.attempt(Sender::progress)
    }
}

impl SendQueue {
    fn transport(&self) -> mscclpp_core::Transport {
        self.sender.as_ref().map_or(mscclpp_core::Transport::IB0, |sender| sender.link.transport())
    }

    /// Does something with a queue whose connection is alive. If it fails, the connection does.
    fn attempt<T>(&mut self, body: impl FnOnce(&mut Sender) -> Result<T>) -> CoreResult<T> {
        let transport = self.transport();
        let sender = self.sender().map_err(|error| error.over(transport))?;
        sender.link.check()?;
        body(sender).map_err(|error| sender.failed(error))
    }
}

impl Drop for SendQueue {
    /// What was given is carried out. The hub's thread sees to it.
    fn drop(&mut self) {
        if let Some(sender) =
            self.sender.take().filter(|sender| !sender.is_idle() && sender.link.check().is_ok())
        {
            self.hub.send(Command::Drain(sender));
        }
    }
}
