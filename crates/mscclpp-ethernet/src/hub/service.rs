//! The thread that accepts, shakes hands, and sees peers go.

use std::{
    collections::{BTreeMap, HashMap},
    net::TcpListener,
    sync::Arc,
    time::{Duration, Instant},
};

use mscclpp_net::{
    Report, SystemError,
    event_loop::{EventLoop, Interest, LISTENER, Ready},
    random,
    socket::{self, Liveness, is_silence},
};

use crate::{
    error::{Error, SystemCall},
    protocol::handshake::{Name, Purpose, Refusal, Request, Session},
    receiving::End,
};

use super::{
    Command, Shared,
    accepted::{Accepted, Progress},
    link_state::{LinkEnd, LinkState},
    links::{InboundEnd, InboundLink, OutboundLink},
    receivers::Receivers,
};

/// How many handshakes may be under way at once. For each beyond that the oldest goes: a member takes moments to prove
/// itself, so strangers who say nothing cannot keep it out.
const MAX_HANDSHAKES: usize = if cfg!(test) { 40 } else { 1024 };
/// How many links, and how many connections that carry data, members may have open here: what each costs is bounded, so
/// all of them are.
const MAX_OPEN: usize = if cfg!(test) { 100 } else { 8192 };
/// How many connections are accepted before the others have their turn again.
const MAX_ACCEPTED: usize = 64;
/// How long those who want to connect wait when the system has no descriptor or memory for them.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

pub(super) struct Service {
    shared: Arc<Shared>,
    events: EventLoop<Command>,
    listener: TcpListener,
    /// By their tokens, like the other connections.
    handshakes: BTreeMap<u64, Accepted>,
    inbound: HashMap<u64, InboundLink>,
    outbound: HashMap<u64, OutboundLink>,
    receivers: Receivers,
    /// When to go on accepting: there were more than one turn takes, or the system had no descriptor or memory.
    resume_accepting: Option<Instant>,
    /// Whether that was logged, and nobody has been accepted since.
    pause_reported: bool,
}

impl Service {
    pub(super) fn new(shared: Arc<Shared>, listener: TcpListener) -> Result<Self, SystemError> {
        let events = EventLoop::new(shared.commands.clone())?;
        events.add_listener(&listener)?;
        Ok(Self {
            shared,
            events,
            listener,
            handshakes: BTreeMap::new(),
            inbound: HashMap::new(),
            outbound: HashMap::new(),
            receivers: Receivers::default(),
            resume_accepting: None,
            pause_reported: false,
        })
    }

    pub(super) fn run(mut self) {
        loop {
            let ready = self.events.wait_or_retry(self.wake_at());
            let now = Instant::now();
            // In this order: what links report counts before suspicions and requests.
            self.read_links(&ready, now);
            self.advance_handshakes(&ready, now);
            if !self.run_commands(now) {
                return;
            }
            // While accepting pauses, the listener's news count for nothing.
            let has_news = || ready.iter().any(|ready| ready.token == LISTENER);
            if self.resume_accepting.map_or_else(has_news, |at| at <= now) {
                self.accept(now);
            }
        }
    }

    /// The next deadline.
    fn wake_at(&self) -> Option<Instant> {
        // All handshakes have the same time, so the oldest one's is up first.
        let handshake = self.handshakes.first_key_value().map(|(_, accepted)| accepted.deadline);
        let suspicions = self.outbound.values().filter_map(OutboundLink::deadline);
        suspicions.chain(handshake).chain(self.resume_accepting).min()
    }

    fn read_links(&mut self, ready: &[Ready], now: Instant) {
        let mut silent = Vec::new();
        let mut ended = Vec::new();
        for Ready { token, .. } in ready {
            if let Some(end) = self.inbound.get(token).and_then(InboundLink::end)
                && let Some(link) = self.inbound.remove(token)
                && end == InboundEnd::Silence
            {
                silent.push(link.request);
            }
            if let Some(end) = self.outbound.get_mut(token).and_then(OutboundLink::read)
                && let Some(link) = self.outbound.remove(token)
            {
                ended.push((link.state, end));
            }
        }
        for request in silent {
            self.suspect_way_back(
                &request,
                "its connection to here broke: its host does not answer any more",
                now,
            );
        }
        self.outbound.retain(|_, link| {
            let Some(end) = link.overdue(now) else { return true };
            ended.push((link.state.clone(), end));
            false
        });
        for (link, end) in ended {
            link.end(end);
        }
    }

    fn advance_handshakes(&mut self, ready: &[Ready], now: Instant) {
        for Ready { token, .. } in ready {
            let Some(mut accepted) = self.handshakes.remove(token) else { continue };
            match accepted.read(|name| self.shared.key_of(name), |request| self.admit(request)) {
                Progress::Undecided => {
                    self.handshakes.insert(*token, accepted);
                }
                Progress::Admitted { request, session } => self.let_in(*token, accepted, request, session),
                Progress::Over(None) => {}
                Progress::Over(Some(refusal)) => {
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
            Purpose::Queue if self.has_link(request) => self.receivers.count(),
            Purpose::Queue => return Err(Refusal::NoLink),
        };
        if open < MAX_OPEN { Ok(()) } else { Err(Refusal::Full) }
    }

    /// Whether a link of that number and those ends is open.
    fn has_link(&self, request: &Request) -> bool {
        let same = |link: &InboundLink| {
            let theirs = link.request;
            (theirs.endpoint, theirs.from, theirs.link) == (request.endpoint, request.from, request.link)
        };
        self.inbound.values().any(same)
    }

    fn let_in(
        &mut self,
        token: u64,
        Accepted { stream, address, .. }: Accepted,
        request: Request,
        session: Session,
    ) {
        let result = match request.purpose {
            Purpose::Link => Liveness::PROMPT.apply(&stream).during("setting up a link").map(|()| {
                self.inbound.insert(token, InboundLink::new(stream, request, session));
            }),
            Purpose::Queue => {
                // From here on a thread of its own waits for its data.
                self.events.remove(&stream);
                self.receivers.start(&self.shared, stream, request, session)
            }
        };
        // The peer sees its connection close.
        if let Err(error) = result {
            tracing::error!(target: "mscclpp::conn", from = %address, error = %Report(&error), "a peer's connection could not be set up");
        }
    }

    /// Carries out what other threads asked for; false to stop.
    fn run_commands(&mut self, now: Instant) -> bool {
        let commands = self.shared.commands.clone();
        for command in commands.take() {
            match command {
                Command::Watch { stream, inbound, link } => match self.events.add(&stream, Interest::READ) {
                    Ok(token) => {
                        self.outbound.insert(token, OutboundLink::new(stream, inbound, link));
                    }
                    Err(error) => link.fail(Error::from(error).into()),
                },
                Command::Unwatch { link } => self.outbound.retain(|_, outbound| outbound.state.id() != link),
                Command::Suspect { link, reason } => {
                    for outbound in self.outbound.values_mut().filter(|outbound| outbound.state.id() == link)
                    {
                        outbound.suspect(reason.clone(), now);
                    }
                }
                Command::Ended { receiver, request, end } => {
                    self.receivers.remove(receiver);
                    self.ended(&request, &end, now);
                }
                Command::CloseEndpoint { name } => self.close_endpoint(&name),
                Command::Stop => return false,
            }
        }
        true
    }

    fn ended(&mut self, request: &Request, end: &End, now: Instant) {
        let is_its =
            |link: &&InboundLink| link.request.link == request.link && link.request.from == request.from;
        let mut link = self.inbound.values().filter(is_its).peekable();
        match end {
            End::Fault(fault) => {
                tracing::error!(target: "mscclpp::conn", %fault, "what a peer sent was refused");
                link.for_each(|link| link.refuse(*fault));
                let back: Vec<Arc<LinkState>> =
                    self.ways_back(request).map(|outbound| outbound.state.clone()).collect();
                for link in back {
                    link.end(LinkEnd::Hostile(fault.to_string()));
                }
            }
            // Its link lives, so the peer may not know of this and go on sending.
            End::Io(error) if is_silence(error) && link.peek().is_some() => {
                tracing::warn!(target: "mscclpp::conn", %error, "the network swallows a peer's connection");
                link.for_each(InboundLink::report_silence);
                self.suspect_way_back(
                    request,
                    "the network swallows a connection of its that carries data",
                    now,
                );
            }
            // The links report what became of the peer.
            End::Closed => {}
            End::Io(error) => tracing::debug!(target: "mscclpp::conn", %error, "a peer's connection ended"),
        }
    }

    /// The links to the peer that made this request: if it is lost, waiting for it over them is in vain.
    fn ways_back(&mut self, request: &Request) -> impl Iterator<Item = &mut OutboundLink> {
        self.outbound.values_mut().filter(|outbound| outbound.state.joins(&request.endpoint, &request.from))
    }

    fn suspect_way_back(&mut self, request: &Request, reason: &str, now: Instant) {
        self.ways_back(request).for_each(|outbound| outbound.suspect(reason.to_owned(), now));
    }

    fn close_endpoint(&mut self, name: &Name) {
        self.inbound.retain(|_, link| {
            let leads_there = link.request.endpoint == *name;
            if leads_there {
                link.say_goodbye();
            }
            !leads_there
        });
        self.receivers.close_endpoint(name);
    }

    fn accept(&mut self, now: Instant) {
        self.resume_accepting = None;
        // Bounded, so that other connections have their turn in between.
        for _ in 0..MAX_ACCEPTED {
            let (stream, address) = match socket::accept(&self.listener) {
                Ok(Some(accepted)) => accepted,
                Ok(None) => return,
                Err(error) => {
                    self.resume_accepting = Some(now + ACCEPT_PAUSE);
                    if !std::mem::replace(&mut self.pause_reported, true) {
                        tracing::warn!(target: "mscclpp::conn", %error, "peers that want to connect have to wait");
                    }
                    return;
                }
            };
            self.pause_reported = false;
            let nonce = match random() {
                Ok(nonce) => nonce,
                Err(error) => {
                    tracing::error!(target: "mscclpp::conn", error = %Report(&error), "nobody can connect");
                    return;
                }
            };
            if self.handshakes.len() == MAX_HANDSHAKES {
                self.handshakes.pop_first();
            }
            let Some(accepted) = Accepted::challenge(stream, address, nonce, now) else { continue };
            match self.events.add(&accepted.stream, Interest::READ) {
                Ok(token) => {
                    self.handshakes.insert(token, accepted);
                }
                Err(error) => {
                    let error = Report(&error).to_string();
                    tracing::warn!(target: "mscclpp::conn", error, from = %address, "cannot serve a peer");
                }
            }
        }
        self.resume_accepting = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Settings, hub::Hub};

    fn service() -> (Arc<Hub>, Service, std::net::SocketAddr) {
        let hub = Hub::start(&Settings::default()).unwrap();
        let listener = socket::listen("127.0.0.1:0".parse().unwrap(), None).unwrap();
        let address = listener.local_addr().unwrap();
        let service = Service::new(hub.shared().clone(), listener).unwrap();
        (hub, service, address)
    }

    fn accept_from(service: &mut Service, last: std::net::SocketAddr) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while service.handshakes.values().last().is_none_or(|accepted| accepted.address != last) {
            assert!(Instant::now() < deadline, "the last one is not accepted");
            service.accept(Instant::now());
        }
    }

    #[test]
    fn strangers_who_say_nothing_make_room_the_oldest_first() {
        let (_hub, mut service, address) = service();
        let strangers: Vec<_> =
            (0..MAX_HANDSHAKES + 5).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
        let addresses: Vec<_> = strangers.iter().map(|stranger| stranger.local_addr().unwrap()).collect();
        accept_from(&mut service, addresses[MAX_HANDSHAKES + 4]);
        let here: Vec<_> = service.handshakes.values().map(|accepted| accepted.address).collect();
        assert_eq!(here, addresses[5..]);
    }

    #[test]
    fn who_says_nothing_is_sent_away_in_the_end() {
        let (_hub, mut service, address) = service();
        let silent = std::net::TcpStream::connect(address).unwrap();
        accept_from(&mut service, silent.local_addr().unwrap());
        let (token, deadline) = service
            .handshakes
            .first_key_value()
            .map(|(token, accepted)| (*token, accepted.deadline))
            .unwrap();
        assert_eq!(service.wake_at(), Some(deadline));
        let ready = [Ready { token, readable: true, writable: false }];
        service.advance_handshakes(&ready, deadline - Duration::from_millis(1));
        assert_eq!(service.handshakes.len(), 1);
        service.advance_handshakes(&[], deadline);
        assert!(service.handshakes.is_empty());
    }
}
