//! The simulated world: ranks, strangers, the events that are still to happen, and the time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::dice::Dice;
use crate::fault::Fault;
use crate::program::{Program, Step};
use crate::stranger::Stranger;
use crate::wire::Wire;
use mscclpp_bootstrap::job::{Action, ConnectionId, Job};
use mscclpp_bootstrap::protocol::handshake::JobKey;

#[derive(Clone)]
pub(super) struct Network {
    pub(super) least_latency: Duration,
    pub(super) most_latency: Duration,
    /// The number of bytes that a connection takes before its sender must wait.
    pub(super) buffer: usize,
    /// The time that a rank needs for one event.
    pub(super) busy: Duration,
    /// Whether bytes that are written at once may arrive in parts.
    pub(super) cuts_writes: bool,
}

/// A function that starts a rank at a time.
pub(super) type Starter = Box<dyn FnOnce(&mut World, Instant) -> Job>;

pub(super) enum Event {
    /// Starts a rank.
    Start(usize, Starter),
    /// A connection request arrives at an address.
    Syn { wire: u64, address: SocketAddr },
    /// The request is accepted.
    Accept { wire: u64 },
    /// The side that dialled learns that it is connected.
    Established { wire: u64 },
    /// The side that dialled learns that nobody listens.
    Refused { wire: u64 },
    /// Bytes arrive at a side.
    Bytes { wire: u64, to: usize, bytes: Vec<u8>, epoch: u32 },
    /// A side may write again.
    Writable { wire: u64, side: usize },
    /// The other side has finished writing, or the connection has broken.
    End { wire: u64, to: usize, why: &'static str },
    /// The time has come for which a rank or a stranger waits.
    Wake(usize),
    /// A process is free for the next event in its line.
    Free(usize),
    /// A fault happens.
    Fault(Fault),
}

/// A process of a rank or a stranger.
pub(super) struct Node {
    pub(super) ip: IpAddr,
    pub(super) job: Option<Job>,
    pub(super) program: Program,
    pub(super) stranger: Option<Stranger>,
    pub(super) wires: BTreeMap<ConnectionId, (u64, usize)>,
    pub(super) listens_at: Vec<SocketAddr>,
    /// The time until which the process is busy; events for it wait in line.
    pub(super) busy_until: Duration,
    in_line: VecDeque<Event>,
    pub(super) dead: bool,
    pub(super) vanished: bool,
    pub(super) wake_at: Option<Duration>,
    /// The later generations of the rank, if it takes part in them.
    pub(super) lives: Option<Lives>,
}

/// The later generations of a rank. It makes the same calls in each.
pub(super) struct Lives {
    pub(super) left: u32,
    pub(super) root: SocketAddr,
    pub(super) key: JobKey,
    pub(super) steps: VecDeque<Step>,
    /// The longest time until the rank forms the job again, or a new process does.
    pub(super) delay: Duration,
    /// The generations that the process has been in.
    pub(super) formed: Vec<u64>,
    /// The number of new processes.
    pub(super) processes: u32,
}

impl Node {
    pub(super) fn new(at: usize) -> Self {
        let [_, high, middle, low] = (at as u32).to_be_bytes();
        Self {
            ip: [10, high, middle, low].into(),
            job: None,
            program: Program::default(),
            stranger: None,
            wires: BTreeMap::new(),
            listens_at: Vec::new(),
            busy_until: Duration::ZERO,
            in_line: VecDeque::new(),
            dead: false,
            vanished: false,
            wake_at: None,
            lives: None,
        }
    }
}

/// The traffic that a rank writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Traffic {
    pub(super) frames: u64,
    pub(super) bytes: u64,
}

pub(super) struct World {
    pub(super) dice: Dice,
    pub(super) network: Network,
    /// The instant at which the simulated time is zero.
    pub(super) start: Instant,
    pub(super) now: Duration,
    pub(super) nodes: Vec<Node>,
    pub(super) wires: BTreeMap<u64, Wire>,
    pub(super) listeners: BTreeMap<SocketAddr, usize>,
    pub(super) parted: Option<Vec<bool>>,
    /// The ranks that a fault has hit, and that may be reported lost.
    pub(super) suspects: Vec<usize>,
    /// The processes that closed a connection with bytes unread, so that their last frames were thrown away.
    pub(super) unheard: BTreeSet<usize>,
    pub(super) last_fault: Duration,
    /// Whether something has happened that all must hear of.
    pub(super) concerns_all: bool,
    events: BTreeMap<(Duration, u64), Event>,
    last_event: u64,
    pub(super) last_wire: u64,
    /// The number of events so far.
    pub(super) count: u64,
    /// The traffic of each rank.
    pub(super) written: Vec<Traffic>,
    /// The most connections that each rank had at one time.
    pub(super) most_wires: Vec<usize>,
    /// A digest of all events.
    pub(super) trace: u64,
}

impl World {
    pub(super) fn new(seed: u64, network: Network, nodes: usize) -> Self {
        Self {
            dice: Dice::new(seed),
            network,
            start: Instant::now(),
            now: Duration::ZERO,
            nodes: (0..nodes).map(Node::new).collect(),
            wires: BTreeMap::new(),
            listeners: BTreeMap::new(),
            parted: None,
            suspects: Vec::new(),
            unheard: BTreeSet::new(),
            last_fault: Duration::ZERO,
            concerns_all: false,
            events: BTreeMap::new(),
            last_event: 0,
            last_wire: 0,
            count: 0,
            written: vec![Traffic::default(); nodes],
            most_wires: vec![0; nodes],
            trace: 0,
        }
    }

    pub(super) fn instant(&self) -> Instant {
        self.start + self.now
    }

    pub(super) fn schedule(&mut self, at: Duration, event: Event) {
        self.last_event += 1;
        self.events.insert((at, self.last_event), event);
    }

    /// Runs until no event is left, or until `limit`. Returns whether no event is left.
    pub(super) fn run(&mut self, limit: Duration, most_events: u64) -> bool {
        while let Some((&(at, number), _)) = self.events.first_key_value() {
            if at > limit || self.count >= most_events {
                return false;
            }
            let Some((_, event)) = self.events.pop_first() else { break };
            self.now = at;
            let (node, event) = match event {
                Event::Free(node) => match self.next_of(node) {
                    Some(event) => (node, event),
                    None => continue,
                },
                event => match self.whose(&event) {
                    None => {
                        self.happen(event, None);
                        continue;
                    }
                    Some(node) if self.nodes[node].dead => {
                        self.lost_on_the_dead(&event);
                        continue;
                    }
                    Some(node) if self.is_busy(node) => {
                        self.wait_in_line(node, event);
                        continue;
                    }
                    Some(node) => (node, event),
                },
            };
            self.count += 1;
            self.trace = (self.trace ^ number ^ at.as_nanos() as u64).wrapping_mul(0x0100_0000_01b3);
            self.nodes[node].busy_until = at + self.network.busy;
            self.happen(event, Some(node));
            self.act(node);
            if !self.nodes[node].in_line.is_empty() {
                self.schedule(self.nodes[node].busy_until.max(at), Event::Free(node));
            }
        }
        true
    }

    fn is_busy(&self, node: usize) -> bool {
        let node = &self.nodes[node];
        node.busy_until > self.now || !node.in_line.is_empty()
    }

    /// Queues an event for a process that is busy.
    fn wait_in_line(&mut self, node: usize, event: Event) {
        let first = self.nodes[node].in_line.is_empty();
        self.nodes[node].in_line.push_back(event);
        if first {
            self.schedule(self.nodes[node].busy_until.max(self.now), Event::Free(node));
        }
    }

    /// Takes the next event of a process that is free again.
    fn next_of(&mut self, node: usize) -> Option<Event> {
        let busy_until = self.nodes[node].busy_until;
        if self.nodes[node].dead {
            for event in std::mem::take(&mut self.nodes[node].in_line) {
                self.lost_on_the_dead(&event);
            }
        } else if busy_until > self.now {
            self.schedule(busy_until, Event::Free(node));
        } else {
            return self.nodes[node].in_line.pop_front();
        }
        None
    }

    /// Returns the process that an event happens to, if there is one.
    fn whose(&self, event: &Event) -> Option<usize> {
        let side = |wire: &u64, side: usize| self.wires.get(wire).and_then(|wire| wire.ends[side].node);
        match event {
            Event::Start(node, _) | Event::Wake(node) => Some(*node),
            Event::Accept { wire } => side(wire, 1),
            Event::Established { wire } | Event::Refused { wire } => side(wire, 0),
            Event::Bytes { wire, to, .. } | Event::End { wire, to, .. } => side(wire, *to),
            Event::Writable { wire, side: which } => side(wire, *which),
            Event::Syn { .. } | Event::Free(_) | Event::Fault(_) => None,
        }
    }

    fn happen(&mut self, event: Event, node: Option<usize>) {
        let now = self.instant();
        match (event, node) {
            (Event::Start(_, make), Some(node)) => {
                let job = make(self, now);
                self.nodes[node].job = Some(job);
            }
            (Event::Wake(_), Some(node)) => {
                self.nodes[node].wake_at = None;
                self.stranger_wakes(node);
            }
            (Event::Syn { wire, address }, _) => self.syn(wire, address),
            (Event::Accept { wire }, Some(node)) => self.accept(wire, node),
            (Event::Established { wire }, Some(node)) => self.established(wire, node),
            (Event::Refused { wire }, Some(node)) => self.refused(wire, node),
            (Event::Bytes { wire, to, bytes, epoch }, Some(node)) => {
                self.bytes(wire, to, node, &bytes, epoch);
            }
            (Event::Writable { wire, side }, Some(node)) => self.writable(wire, side, node),
            (Event::End { wire, to, why }, Some(node)) => self.ended(wire, to, node, why),
            (Event::Fault(fault), _) => self.fault(fault),
            (Event::Free(_), _) | (_, None) => {}
        }
    }

    /// Carries out the actions of a rank, lets its caller continue, and schedules when to wake it.
    pub(super) fn act(&mut self, node: usize) {
        loop {
            let now = self.instant();
            let Some(job) = &mut self.nodes[node].job else { return };
            job.on_time(now);
            while let Some(action) = self.nodes[node].job.as_mut().and_then(Job::next_action) {
                self.carry_out(node, action);
                if self.nodes[node].program.sees_failure() {
                    // The process ends before any other action is carried out.
                    return self.end_process(node);
                }
            }
            let rank = &mut self.nodes[node];
            let commands = rank.program.go_on(self.now, &mut self.dice);
            if commands.is_empty() {
                break;
            }
            for command in commands {
                if let Some(job) = &mut rank.job {
                    job.on_command(now, command);
                }
            }
        }
        let rank = &mut self.nodes[node];
        if rank.program.gives_up_alone() {
            self.hit(&[node]);
        }
        let rank = &mut self.nodes[node];
        if rank.program.exits() || rank.job.as_ref().is_some_and(|job| job.is_finished(self.start + self.now))
        {
            return self.end_process(node);
        }
        let job_at =
            rank.job.as_ref().and_then(Job::wake_at).map(|at| at.saturating_duration_since(self.start));
        let wake_at = job_at.into_iter().chain(rank.program.wake_at()).min().map(|at| at.max(self.now));
        if let Some(at) = wake_at.filter(|at| rank.wake_at.is_none_or(|before| *at < before)) {
            // Waking it too early does no harm.
            rank.wake_at = Some(at);
            self.schedule(at.max(self.now + Duration::from_micros(1)), Event::Wake(node));
        }
    }

    fn carry_out(&mut self, node: usize, action: Action) {
        match action {
            Action::Dial { id, address } => self.dial(node, id, address),
            Action::Write { id } => self.write(node, id),
            Action::FinishWriting { id } => self.finish(node, id),
            Action::Close { id } => self.close(node, id, true),
            Action::Listen { local } => {
                let address = SocketAddr::new(local, 5000);
                self.listen(node, address);
                let now = self.instant();
                if let Some(job) = &mut self.nodes[node].job {
                    job.on_listening(now, Ok((address.port(), vec![local])));
                }
            }
            Action::StopListening => self.stop_listening(node),
            other => self.nodes[node].program.hear(self.now, other),
        }
    }

    pub(super) fn listen(&mut self, node: usize, address: SocketAddr) {
        self.nodes[node].listens_at.push(address);
        self.listeners.insert(address, node);
    }

    pub(super) fn stop_listening(&mut self, node: usize) {
        for address in std::mem::take(&mut self.nodes[node].listens_at) {
            self.listeners.remove(&address);
        }
    }

    /// Ends a process, by itself or by a fault: the system closes its connections.
    pub(super) fn end_process(&mut self, node: usize) {
        self.nodes[node].program.go_on(self.now, &mut self.dice);
        self.stop_listening(node);
        let ids: Vec<ConnectionId> = self.nodes[node].wires.keys().copied().collect();
        for id in ids {
            self.close(node, id, false);
        }
        self.nodes[node].job = None;
        self.nodes[node].dead = true;
        self.live_again(node);
    }
}
