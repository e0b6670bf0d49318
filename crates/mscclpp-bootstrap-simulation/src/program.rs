//! The caller of a simulated rank: it makes collective calls and sends messages, and then leaves. It checks its
//! results.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::dice::Dice;
use mscclpp_bootstrap::collective::call::{Call, Operation, contribution, contributions};
use mscclpp_bootstrap::collective::exchange::{Envelope, Exchange, Next};
use mscclpp_bootstrap::collective::group::Group;
use mscclpp_bootstrap::inbox::{Channel, Stream};
use mscclpp_bootstrap::job::OPEN_AFTER;
use mscclpp_bootstrap::job::{Action, Command, Written};
use mscclpp_bootstrap::{Error, Result};

#[derive(Debug, Clone)]
pub(super) enum Step {
    AllGather,
    Barrier,
    Broadcast { root: usize },
    GroupBarrier(Vec<usize>),
    Send { to: usize, tag: u64, bytes: Vec<u8> },
    Receive { from: usize, tag: u64, bytes: Vec<u8> },
    Sleep(Duration),
}

enum Running {
    /// A collective of all ranks.
    Tree(Exchange<Call>),
    /// A barrier of a group.
    Group(Exchange<Group>),
    /// A send, which lasts until the message is with the system, as for a real caller.
    Send { to: usize, written: Written },
    /// A receive, which lasts until this message comes.
    Receive { from: usize, tag: u64, bytes: Vec<u8> },
}

/// The caller of a rank, and the events that it has heard of.
#[derive(Default)]
pub(super) struct Program {
    pub(super) rank: usize,
    pub(super) n: usize,
    pub(super) steps: VecDeque<Step>,
    /// Whether the process ends as soon as the caller sees an error.
    pub(super) exits_on_error: bool,
    /// The longest pause before a step.
    pub(super) pause: Duration,
    /// The number of bytes that each rank contributes to collectives; if `None`, each contributes a different number.
    pub(super) piece: Option<usize>,
    /// The times at which the job had formed, and at which each call except a sleep was over.
    pub(super) ends: Vec<Duration>,
    /// Whether a fault has ended the process.
    pub(super) victim: bool,
    pub(super) formed_at: Option<Duration>,
    pub(super) generation: Option<u64>,
    pub(super) outcome: Option<(Duration, Result<()>)>,
    /// Results that were not as they must be.
    pub(super) violations: Vec<String>,
    calls: u64,
    running: Option<Running>,
    not_before: Duration,
    waiting_since: Option<Duration>,
    opened: bool,
    messages: HashMap<Stream, VecDeque<Vec<u8>>>,
    gone: BTreeMap<usize, Error>,
    failure: Option<Error>,
}

impl Program {
    /// Makes the same caller again, before its first call.
    pub(super) fn again(&self, steps: VecDeque<Step>) -> Self {
        Self { rank: self.rank, n: self.n, pause: self.pause, steps, ..Self::default() }
    }

    pub(super) fn is_over(&self) -> bool {
        self.outcome.is_some()
    }

    /// Describes what the caller waits for, for messages.
    pub(super) fn awaited(&self) -> String {
        match &self.running {
            _ if self.is_over() => "nothing".to_owned(),
            Some(Running::Tree(exchange)) => exchange.envelope.to_string(),
            Some(Running::Group(_)) => "a group_barrier".to_owned(),
            Some(Running::Send { to, .. }) => format!("a send to rank {to}"),
            Some(Running::Receive { from, tag, .. }) => format!("a message of rank {from}, tag {tag}"),
            None => "its next call".to_owned(),
        }
    }

    /// Returns whether the process ends now, without leaving.
    pub(super) fn exits(&self) -> bool {
        self.exits_on_error && self.outcome.as_ref().is_some_and(|(_, outcome)| outcome.is_err())
    }

    /// Returns whether the process ends by an error that the others do not hear of otherwise.
    pub(super) fn gives_up_alone(&self) -> bool {
        self.exits() && self.failure.is_none()
    }

    /// Returns whether the caller has just heard of the failure that ends its process.
    pub(super) fn sees_failure(&self) -> bool {
        self.exits_on_error && self.failure.is_some()
    }

    /// Passes an action for the caller to it.
    pub(super) fn hear(&mut self, now: Duration, action: Action) {
        match action {
            Action::Formed(table) => {
                self.generation = Some(table.generation());
                self.formed_at = Some(now);
                self.ends.push(now);
            }
            Action::Deliver { stream, bytes } => {
                self.messages.entry(stream).or_default().push_back(bytes);
            }
            Action::Gone { peer, error } => {
                // A departure replaces a time-out here, as in the inbox of a real rank.
                let departed = matches!(self.gone.get(&peer), Some(Error::PeerClosed { .. }));
                if !departed {
                    self.gone.insert(peer, error);
                }
            }
            Action::Sent(sending) => sending.written.store(true, Ordering::Relaxed),
            Action::Failed(error) => {
                self.failure.get_or_insert(error);
            }
            _ => {}
        }
    }

    pub(super) fn wake_at(&self) -> Option<Duration> {
        if self.is_over() || self.formed_at.is_none() {
            return None;
        }
        let open_at = self.waiting_since.filter(|_| !self.opened).map(|since| since + OPEN_AFTER);
        open_at.or((self.running.is_none()).then_some(self.not_before))
    }

    /// Continues as far as it can. Returns the commands for its rank.
    pub(super) fn go_on(&mut self, now: Duration, dice: &mut Dice) -> Vec<Command> {
        let mut commands = Vec::new();
        while !self.is_over() {
            if let Some(error) = self.failure.clone() {
                self.end(now, Err(error), &mut commands);
                break;
            }
            if self.formed_at.is_none() || now < self.not_before {
                break;
            }
            let Some(running) = self.running.take() else {
                let Some(step) = self.steps.pop_front() else {
                    self.end(now, Ok(()), &mut commands);
                    break;
                };
                match self.begin(now, step, &mut commands) {
                    Ok(running) => self.running = running,
                    Err(error) => self.end(now, Err(error), &mut commands),
                }
                (self.waiting_since, self.opened) = (None, false);
                continue;
            };
            match self.advance(running, &mut commands) {
                Ok(None) => {
                    self.not_before = now + dice.between(Duration::ZERO, self.pause);
                    self.ends.push(now);
                }
                Ok(Some((running, awaited))) => {
                    self.running = Some(running);
                    let since = *self.waiting_since.get_or_insert(now);
                    if now >= since + OPEN_AFTER && !std::mem::replace(&mut self.opened, true) {
                        commands.extend(awaited.into_iter().map(|peer| Command::Open { peer }));
                    }
                    break;
                }
                Err(error) => self.end(now, Err(error), &mut commands),
            }
        }
        commands
    }

    fn end(&mut self, now: Duration, outcome: Result<()>, commands: &mut Vec<Command>) {
        if outcome.is_ok() && self.messages.values().any(|queue| !queue.is_empty()) {
            self.violations.push(format!("rank {} was sent a message that nobody expects", self.rank));
        }
        self.outcome = Some((now, outcome));
        if !self.exits() {
            commands.push(Command::Close);
        }
    }

    fn begin(&mut self, now: Duration, step: Step, commands: &mut Vec<Command>) -> Result<Option<Running>> {
        let (rank, n) = (self.rank, self.n);
        let number = self.calls;
        let call = |operation, own| {
            let exchange = Call { operation, number, rank, n }.exchange(own);
            Ok(Some(Running::Tree(exchange)))
        };
        if matches!(step, Step::AllGather | Step::Barrier | Step::Broadcast { .. }) {
            self.calls += 1;
        }
        match step {
            Step::AllGather => call(Operation::AllGather, contribution(rank, &self.piece(rank))),
            Step::Barrier => call(Operation::Barrier, Vec::new()),
            Step::Broadcast { root } => {
                let own = if rank == root { self.piece(root) } else { Vec::new() };
                call(Operation::Broadcast { root: root as u32 }, own)
            }
            Step::GroupBarrier(members) => Ok(Some(Running::Group(Group::new(members).exchange(rank)))),
            Step::Send { to, tag, bytes } => {
                if let Some(error) = self.gone.get(&to) {
                    return Err(error.clone());
                }
                let stream = Stream { peer: to, channel: Channel::User, tag };
                let written = Written::default();
                commands.push(Command::Send { stream, bytes, written: Some(Written::clone(&written)) });
                Ok(Some(Running::Send { to, written }))
            }
            Step::Receive { from, tag, bytes } => Ok(Some(Running::Receive { from, tag, bytes })),
            Step::Sleep(time) => {
                self.not_before = now + time;
                Ok(None)
            }
        }
    }

    /// Advances a call. If it is not over, returns it with the ranks that it waits for.
    fn advance(
        &mut self,
        running: Running,
        commands: &mut Vec<Command>,
    ) -> Result<Option<(Running, Vec<usize>)>> {
        match running {
            Running::Tree(mut exchange) => {
                let call = exchange.envelope;
                Ok(match self.exchange(&mut exchange, (Channel::Tree, 0), commands)? {
                    Next::Await(awaited) => Some((Running::Tree(exchange), awaited)),
                    Next::Done(down) => {
                        self.check(call, &down);
                        None
                    }
                })
            }
            Running::Group(mut exchange) => {
                let tag = exchange.envelope.tag();
                Ok(match self.exchange(&mut exchange, (Channel::Group, tag), commands)? {
                    Next::Await(awaited) => Some((Running::Group(exchange), awaited)),
                    Next::Done(_) => None,
                })
            }
            Running::Send { to, written } => match self.gone.get(&to) {
                _ if written.written.load(Ordering::Relaxed) => Ok(None),
                Some(error) => Err(error.clone()),
                None => Ok(Some((Running::Send { to, written }, Vec::new()))),
            },
            Running::Receive { from, tag, bytes } => {
                let Some(outcome) = self.take(Stream { peer: from, channel: Channel::User, tag }) else {
                    return Ok(Some((Running::Receive { from, tag, bytes }, vec![from])));
                };
                if outcome? != bytes {
                    let rank = self.rank;
                    self.violations
                        .push(format!("rank {rank} did not get the message of rank {from} that is due"));
                }
                Ok(None)
            }
        }
    }

    fn exchange<E: Envelope>(
        &mut self,
        exchange: &mut Exchange<E>,
        (channel, tag): (Channel, u64),
        commands: &mut Vec<Command>,
    ) -> Result<Next> {
        let stream = |peer| Stream { peer, channel, tag };
        let post = |peer, bytes| commands.push(Command::Send { stream: stream(peer), bytes, written: None });
        exchange.run(post, |peer| self.take(stream(peer)).transpose())
    }

    fn take(&mut self, stream: Stream) -> Option<Result<Vec<u8>>> {
        let message = self.messages.get_mut(&stream).and_then(VecDeque::pop_front);
        message.map(Ok).or_else(|| self.gone.get(&stream.peer).map(|error| Err(error.clone())))
    }

    fn check(&mut self, call: Call, down: &[u8]) {
        let right = match call.operation {
            Operation::Barrier => true,
            Operation::Broadcast { root } => down == self.piece(root as usize),
            Operation::AllGather => contributions(down, self.n)
                .is_ok_and(|all| all.iter().enumerate().all(|(rank, bytes)| *bytes == self.piece(rank))),
        };
        if !right {
            self.violations.push(format!("rank {} got something wrong from {call}", self.rank));
        }
    }

    /// Returns the contribution of a rank to collectives.
    fn piece(&self, rank: usize) -> Vec<u8> {
        vec![rank as u8; self.piece.unwrap_or(rank % 41)]
    }
}
