//! The thread that accepts connections, does handshakes, and notices when peers go.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::TcpListener,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use crate::{
    Report, SystemError,
    event_loop::{ACCEPT_PAUSE, EventLoop, Listener, Ready},
    handshake::Session,
    random, socket,
};

use super::{
    Acceptor, Admission, Command, DataConnection, LinkEnd, LinksState, Name,
    accepted::Accepted,
    handshake::{Purpose, Refusal, Request},
    inbound::{InboundEnd, InboundLink},
    message::{Message, with_reason},
    outbound::OutboundLink,
};

/// The most handshakes that may be under way at once. Each new one beyond that ends the oldest. A member proves
/// itself within moments, so strangers who say nothing cannot keep it out.
const MAX_HANDSHAKES: usize = if cfg!(test) { 40 } else { 1024 };
/// The most links, and the most data connections, that members may have open here. Each costs a bounded amount, so
/// all of them together do too.
pub(super) const MAX_OPEN: usize = if cfg!(test) { 100 } else { 8192 };
/// The most connections that are accepted before other sockets have their turn again.
const MAX_ACCEPTED: usize = 64;

pub(super) struct Service {
    shared: Arc<LinksState>,
    acceptor: Option<Arc<dyn Acceptor>>,
    events: EventLoop<Command>,
    listener: Listener<TcpListener>,
    /// The handshakes by the token of their connection, as in the maps below.
    handshakes: BTreeMap<u64, Accepted>,
    inbound: HashMap<u64, InboundLink>,
    outbound: HashMap<u64, OutboundLink>,
    /// Pairs of an own endpoint and a peer's endpoint that was notified that this side has failed.
    failed: HashSet<(Name, Name)>,
}

impl Service {
    pub(super) fn new(
        shared: Arc<LinksState>,
        listener: TcpListener,
        acceptor: Option<Arc<dyn Acceptor>>,
    ) -> Result<Self, SystemError> {
        let events = EventLoop::new(shared.commands.clone())?;
        Ok(Self {
            shared,
            acceptor,
            listener: Listener::new(&events, listener)?,
            events,
            handshakes: BTreeMap::new(),
            inbound: HashMap::new(),
            outbound: HashMap::new(),
            failed: HashSet::new(),
        })
    }

    pub(super) fn run(mut self) {
        loop {
            let ready = self.events.wait_or_retry(self.wake_at());
            let now = Instant::now();
            // The order matters: the messages on links count before suspicions and requests.
            self.read_links(&ready, now);
            self.advance_handshakes(&ready, now);
            if !self.run_commands(now) {
                return;
            }
            if self.listener.is_due(&ready, now) {
                self.accept(now);
            }
        }
    }

    /// Returns the next deadline.
    fn wake_at(&self) -> Option<Instant> {
        // All handshakes have the same time limit, so the oldest one ends first.
        let handshake = self.handshakes.first_key_value().map(|(_, accepted)| accepted.deadline);
        let suspicions = self.outbound.values().filter_map(OutboundLink::deadline);
        suspicions.chain(handshake).chain(self.listener.resume_at).min()
    }

    fn read_links(&mut self, ready: &[Ready], now: Instant) {
        let (mut silent, mut lost) = (Vec::new(), Vec::new());
        for Ready { token, .. } in ready {
            if let Some(end) = self.inbound.get(token).and_then(InboundLink::end)
                && let Some(link) = self.inbound.remove(token)
                && end == InboundEnd::Silence
            {
                silent.push(link.request);
            }
            let Some(link) = self.outbound.get_mut(token) else { continue };
            if let Some(end) = link.read(now + self.shared.grace) {
                lost.extend(matches!(end, LinkEnd::Lost(_)).then_some(link.request));
                link.events().ended(end);
                self.outbound.remove(token);
            }
        }
        for request in silent {
            let reason = "its connection to here broke: its node does not answer any more";
            self.suspect_way_back(&request, reason, now);
        }
        self.outbound.retain(|_, link| {
            let Some(end) = link.overdue(now) else { return true };
            lost.push(link.request);
            link.events().ended(end);
            false
        });
        for request in lost {
            self.ways_back_of(&request).for_each(|link| link.say(Message::Broken));
        }
    }

    fn advance_handshakes(&mut self, ready: &[Ready], now: Instant) {
        for Ready { token, .. } in ready {
            let Some(mut accepted) = self.handshakes.remove(token) else { continue };
            match accepted.read(|name| self.shared.key_of(name), |request| self.admit(request)) {
                Ok(None) => {
                    self.handshakes.insert(*token, accepted);
                }
                Ok(Some((request, session))) => self.let_in(*token, accepted, request, &session),
                Err(None) => {}
                Err(Some(refusal)) => {
                    tracing::warn!(target: "mscclpp::conn", from = %accepted.address, %refusal, "refused a connection");
                }
            }
        }
        while let Some(oldest) = self.handshakes.first_entry()
            && oldest.get().deadline <= now
        {
            oldest.remove();
        }
    }

    fn admit(&self, request: &Request) -> Result<(), Refusal> {
        let open = match request.purpose {
            Purpose::Link => self.inbound.len(),
            Purpose::Data if self.acceptor.is_none() => return Err(Refusal::Foreign),
            Purpose::Data if self.links_of(request).next().is_none() => return Err(Refusal::NoLink),
            Purpose::Data => self.shared.admitted.load(Ordering::Relaxed),
        };
        if open < MAX_OPEN { Ok(()) } else { Err(Refusal::Full) }
    }

    /// Returns the links to which a connection belongs, usually one.
    fn links_of(&self, request: &Request) -> impl Iterator<Item = &InboundLink> {
        self.inbound.values().filter(|link| link.request.is_of_the_link_of(request))
    }

    /// Returns the links from the endpoint that `request` leads to, back to the one that `request` comes from.
    fn ways_back_of(&self, request: &Request) -> impl Iterator<Item = &InboundLink> {
        self.inbound.values().filter(|link| link.request.is_way_back_of(request))
    }

    fn let_in(
        &mut self,
        token: u64,
        Accepted { stream, address, .. }: Accepted,
        request: Request,
        session: &Session,
    ) {
        let result = match (request.purpose, &self.acceptor) {
            (Purpose::Data, Some(acceptor)) => {
                // From here on the transport waits for the data of this connection.
                self.events.remove(&stream);
                let connection = DataConnection::new(stream, &session.responder, &session.initiator);
                acceptor.accept(connection, Admission::new(&self.shared, request))
            }
            (Purpose::Link, _) => InboundLink::new(stream, request, session).map(|link| {
                self.inbound.insert(token, link);
            }),
            // `admit` refuses data connections without an acceptor, so none comes here; if one did, it would be
            // closed.
            (Purpose::Data, None) => Ok(()),
        };
        // The peer sees that its connection is closed.
        if let Err(error) = result {
            tracing::error!(target: "mscclpp::conn", from = %address, error = %Report(&error), "a peer's connection could not be set up");
        }
    }

    /// Carries out the commands of other threads. Returns false if the thread is to stop.
    fn run_commands(&mut self, now: Instant) -> bool {
        let commands = self.shared.commands.clone();
        for command in commands.take() {
            match command {
                Command::Watch(link) => match self.events.add(&link.stream) {
                    Ok(token) => {
                        self.outbound.insert(token, link);
                    }
                    Err(error) => link.events().ended(LinkEnd::System(error)),
                },
                Command::Unwatch { link } => {
                    self.outbound.retain(|_, outbound| outbound.request.link != link);
                }
                Command::Suspect { link, reason } => {
                    let suspected = self.outbound.values_mut().filter(|o| o.request.link == link);
                    suspected
                        .for_each(|outbound| outbound.suspect(Some(reason.clone()), now + self.shared.grace));
                }
                Command::Report { request, message, told, reason } => {
                    self.report(&request, message, &told, &reason, now);
                }
                Command::TellFailure { request, reason } => {
                    self.failed.insert((request.from, request.endpoint));
                    let back = self.ways_back_of(&request);
                    back.for_each(|link| with_reason(&reason, Message::Failed).for_each(|it| link.say(it)));
                }
                Command::CloseEndpoint { name } => self.close_endpoint(&name),
                Command::Stop => return false,
            }
        }
        true
    }

    /// Reports that something went wrong on a data connection. The peer may not know of it, so the text `told` and then
    /// `message` are sent on its link.
    fn report(&mut self, request: &Request, message: Message, told: &str, reason: &str, now: Instant) {
        match message {
            Message::Refused => {
                tracing::error!(target: "mscclpp::conn", reason, "what a peer sent was refused");
            }
            // The end of the link has said more already.
            Message::Silence if self.links_of(request).next().is_none() => return,
            Message::Silence => {
                tracing::warn!(target: "mscclpp::conn", "the network swallows a peer's connection");
            }
            // A peer that was notified that this side has failed closes its connections to here, which needs no report.
            _ if self.failed.contains(&(request.endpoint, request.from)) => return,
            _ => tracing::info!(target: "mscclpp::conn", reason, "a peer's connection broke"),
        }
        self.links_of(request).for_each(|link| with_reason(told, message).for_each(|it| link.say(it)));
        if message != Message::Refused {
            return self.suspect_way_back(request, reason, now);
        }
        // The peer will not send what this side waits for.
        self.outbound.retain(|_, link| {
            let ends = link.request.is_way_back_of(request);
            if ends {
                link.events().ended(link.hostile(reason.to_owned()));
            }
            !ends
        });
    }

    /// Suspects the links to the peer that made this request: if the peer is lost, waiting for it over them is in
    /// vain.
    fn suspect_way_back(&mut self, request: &Request, reason: &str, now: Instant) {
        let back = self.outbound.values_mut().filter(|link| link.request.is_way_back_of(request));
        back.for_each(|link| link.suspect(Some(reason.to_owned()), now + self.shared.grace));
    }

    fn close_endpoint(&mut self, name: &Name) {
        self.failed.retain(|(own, _)| own != name);
        self.inbound.retain(|_, link| {
            let leads_there = link.request.endpoint == *name;
            if leads_there {
                link.say(Message::Goodbye);
            }
            !leads_there
        });
        if let Some(acceptor) = &self.acceptor {
            acceptor.close_endpoint(name);
        }
    }

    fn accept(&mut self, now: Instant) {
        // The number is bounded, so that other connections have their turn in between.
        for _ in 0..MAX_ACCEPTED {
            let Some((stream, address)) = self.listener.accept(now, socket::accept) else { return };
            let nonce = match random() {
                Ok(nonce) => nonce,
                Err(error) => {
                    tracing::error!(target: "mscclpp::conn", error = %Report(&error), "nobody can connect");
                    self.listener.resume_at = Some(now + ACCEPT_PAUSE);
                    return;
                }
            };
            if self.handshakes.len() == MAX_HANDSHAKES {
                self.handshakes.pop_first();
            }
            let Some(accepted) = Accepted::challenge(self.shared.protocol, stream, address, nonce, now)
            else {
                continue;
            };
            match self.events.add(&accepted.stream) {
                Ok(token) => {
                    self.handshakes.insert(token, accepted);
                }
                Err(error) => {
                    let error = Report(&error).to_string();
                    tracing::warn!(target: "mscclpp::conn", error, from = %address, "cannot serve a peer");
                }
            }
        }
        self.listener.resume_at = Some(now);
    }
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
