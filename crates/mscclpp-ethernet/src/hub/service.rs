//! The thread.

use std::{
    io,
    net::TcpListener,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    protocol::handshake::{Name, Purpose, Refusal, Session, Wish},
    receiving::End,
    socket,
};

use super::{
    Command, Shared,
    inflows::Inflows,
    link_state::LinkEnd,
    links::{Guest, GuestEnd, Watched},
    random,
    visitor::{Outcome, Visitor},
};

/// How many visitors may be undecided at once. For each beyond that the oldest goes: a member takes moments to prove
/// itself, so strangers who say nothing cannot keep it out.
const MAX_UNDECIDED: usize = if cfg!(test) { 40 } else { 1024 };
/// How many links, and how many connections that carry data, members may have open here: what each costs is bounded, so
/// all of them are.
const MAX_OPEN: usize = if cfg!(test) { 100 } else { 8192 };
/// How many are accepted before those who are here are heard again.
const MAX_WELCOMED: usize = 64;
/// How often visitors and suspicions are looked after.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

pub(super) struct Service {
    shared: Arc<Shared>,
    listener: TcpListener,
    /// Oldest first.
    visitors: Vec<Visitor>,
    guests: Vec<Guest>,
    watched: Vec<Watched>,
    inflows: Inflows,
    /// The system refused to accept the last visitor: it has no descriptor or memory for it.
    resting: bool,
}

/// From whom there is news, in the order of the lists.
struct News {
    visitors: Vec<bool>,
    guests: Vec<bool>,
    watched: Vec<bool>,
}

impl Service {
    pub(super) fn new(shared: Arc<Shared>, listener: TcpListener) -> Self {
        Self {
            shared,
            listener,
            visitors: Vec::new(),
            guests: Vec::new(),
            watched: Vec::new(),
            inflows: Inflows::default(),
            resting: false,
        }
    }

    pub(super) fn run(mut self) {
        loop {
            let news = self.wait();
            let now = Instant::now();
            // In this order: what was heard counts before what others suspect or want.
            self.hear_links(&news, now);
            self.hear_visitors(&news, now);
            if !self.obey(now) {
                return;
            }
            self.welcome(now);
        }
    }

    fn wait(&self) -> News {
        let mut fds = Vec::with_capacity(2 + self.visitors.len() + self.guests.len() + self.watched.len());
        fds.push(PollFd::new(&self.shared.wake, PollFlags::IN));
        // A listener that nobody is accepted from stays readable: looked at, it would keep this thread spinning.
        let looked_for = if self.resting { PollFlags::empty() } else { PollFlags::IN };
        fds.push(PollFd::new(&self.listener, looked_for));
        fds.extend(self.visitors.iter().map(|v| PollFd::new(&v.stream, PollFlags::IN)));
        fds.extend(self.guests.iter().map(|g| PollFd::new(&g.stream, PollFlags::IN)));
        fds.extend(self.watched.iter().map(|w| PollFd::new(&w.stream, PollFlags::IN)));
        let ticking =
            self.resting || !self.visitors.is_empty() || self.watched.iter().any(Watched::is_suspected);
        if let Err(error) = poll(&mut fds, ticking.then_some(&TICK))
            && error != rustix::io::Errno::INTR
        {
            tracing::warn!(target: "mscclpp::conn", %error, "waiting for peers");
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = rustix::io::read(&self.shared.wake, &mut [0; 8]);
        let mut ready = fds[2..].iter().map(|fd| !fd.revents().is_empty());
        let mut take = |count: usize| ready.by_ref().take(count).collect();
        News {
            visitors: take(self.visitors.len()),
            guests: take(self.guests.len()),
            watched: take(self.watched.len()),
        }
    }

    fn hear_links(&mut self, news: &News, now: Instant) {
        let mut ready = news.guests.iter();
        let mut silent = Vec::new();
        self.guests.retain(|guest| {
            let end = if ready.next().is_some_and(|ready| *ready) { guest.end() } else { None };
            silent.extend((end == Some(GuestEnd::Silence)).then_some(guest.wish));
            end.is_none()
        });
        for wish in silent {
            self.suspect_way_back(
                &wish,
                "its connection to here broke: its host does not answer any more",
                now,
            );
        }
        let mut ready = news.watched.iter();
        let mut ended = Vec::new();
        self.watched.retain_mut(|watched| {
            let ready = ready.next().is_some_and(|ready| *ready);
            let end = ready.then(|| watched.hear()).flatten().or_else(|| watched.overdue(now));
            let Some(end) = end else { return true };
            ended.push((watched.link.clone(), end));
            false
        });
        for (link, end) in ended {
            link.end(end);
        }
    }

    fn hear_visitors(&mut self, news: &News, now: Instant) {
        let visitors = std::mem::take(&mut self.visitors);
        for (index, mut visitor) in visitors.into_iter().enumerate() {
            let ready = news.visitors.get(index).is_some_and(|ready| *ready);
            if !ready {
                if !visitor.is_overdue(now) {
                    self.visitors.push(visitor);
                }
                continue;
            }
            match visitor.hear(|name| self.shared.key_of(name), |wish| self.admit(wish)) {
                Outcome::Undecided => self.visitors.push(visitor),
                Outcome::Admitted { wish, session } => self.let_in(visitor, wish, session),
                Outcome::Gone(refusal) => {
                    if let Some(refusal) = refusal {
                        tracing::warn!(target: "mscclpp::conn", from = %visitor.address, %refusal, "turned somebody away");
                    }
                }
            }
        }
    }

    fn admit(&self, wish: &Wish) -> Result<(), Refusal> {
        let open = match wish.purpose {
            Purpose::Link => self.guests.len(),
            Purpose::Queue if self.is_guest(wish) => self.inflows.count(),
            Purpose::Queue => return Err(Refusal::NoLink),
        };
        if open < MAX_OPEN { Ok(()) } else { Err(Refusal::Full) }
    }

    /// Whether a link of that number and those ends is open.
    fn is_guest(&self, wish: &Wish) -> bool {
        let same = |guest: &Guest| {
            let theirs = guest.wish;
            (theirs.endpoint, theirs.from, theirs.link) == (wish.endpoint, wish.from, wish.link)
        };
        self.guests.iter().any(same)
    }

    fn let_in(&mut self, visitor: Visitor, wish: Wish, session: Session) {
        let result = match wish.purpose {
            Purpose::Link => socket::tune_link(&visitor.stream).map_err(|e| e.to_string()).map(|()| {
                self.guests.push(Guest::new(visitor.stream, wish, session));
            }),
            Purpose::Queue => self
                .inflows
                .start(&self.shared, visitor.stream, wish, session)
                .map_err(|e| mscclpp_core::Report(&e).to_string()),
        };
        // The peer sees its connection close.
        if let Err(error) = result {
            tracing::error!(target: "mscclpp::conn", from = %visitor.address, error, "a peer's connection could not be set up");
        }
    }

    /// Carries out what other threads asked for; false to stop.
    fn obey(&mut self, now: Instant) -> bool {
        let commands = std::mem::take(&mut *self.shared.commands.lock());
        for command in commands {
            match command {
                Command::Watch { stream, inbound, link } => {
                    self.watched.push(Watched::new(stream, inbound, link));
                }
                Command::Unwatch { link } => self.watched.retain(|watched| watched.link.id() != link),
                Command::Suspect { link, reason } => {
                    for watched in self.watched.iter_mut().filter(|watched| watched.link.id() == link) {
                        watched.suspect(reason.clone(), now);
                    }
                }
                Command::Ended { inflow, wish, end } => {
                    self.inflows.remove(inflow);
                    self.ended(&wish, &end, now);
                }
                Command::CloseEndpoint { name } => self.close_endpoint(&name),
                Command::Stop => return false,
            }
        }
        true
    }

    fn ended(&mut self, wish: &Wish, end: &End, now: Instant) {
        let is_its = |guest: &&Guest| guest.wish.link == wish.link && guest.wish.from == wish.from;
        let mut link = self.guests.iter().filter(is_its).peekable();
        match end {
            End::Fault(fault) => {
                tracing::error!(target: "mscclpp::conn", %fault, "what a peer sent was refused");
                link.for_each(|guest| guest.refuse(*fault));
                let back = self.ways_back(wish).map(|watched| watched.link.clone()).collect::<Vec<_>>();
                for link in back {
                    link.end(LinkEnd::Hostile(fault.to_string()));
                }
            }
            // Its link lives, so the peer may not know, and goes on sending.
            End::Io(error) if socket::is_silence(error) && link.peek().is_some() => {
                tracing::warn!(target: "mscclpp::conn", %error, "the network swallows a peer's connection");
                link.for_each(Guest::tell_of_silence);
                self.suspect_way_back(
                    wish,
                    "the network swallows a connection of its that carries data",
                    now,
                );
            }
            // What became of the peer, the links tell.
            End::Closed => {}
            End::Io(error) => tracing::debug!(target: "mscclpp::conn", %error, "a peer's connection ended"),
        }
    }

    /// Links to the peer of a connection that came from there: whoever waits here for that peer, if it is lost, waits in
    /// vain.
    fn ways_back(&mut self, wish: &Wish) -> impl Iterator<Item = &mut Watched> {
        self.watched.iter_mut().filter(|watched| watched.link.joins(&wish.endpoint, &wish.from))
    }

    fn suspect_way_back(&mut self, wish: &Wish, reason: &str, now: Instant) {
        self.ways_back(wish).for_each(|watched| watched.suspect(reason.to_owned(), now));
    }

    fn close_endpoint(&mut self, name: &Name) {
        self.guests.retain(|guest| {
            let leads_there = guest.wish.endpoint == *name;
            if leads_there {
                guest.say_goodbye();
            }
            !leads_there
        });
        self.inflows.close_endpoint(name);
    }

    fn welcome(&mut self, now: Instant) {
        let was_resting = std::mem::take(&mut self.resting);
        // Not without end: those who are here have to be heard in between.
        for _ in 0..MAX_WELCOMED {
            let (stream, address) = match self.listener.accept() {
                Ok(visitor) => visitor,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Somebody who went again before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.resting = true;
                    if !was_resting {
                        tracing::warn!(target: "mscclpp::conn", %error, "peers that want to connect have to wait");
                    }
                    return;
                }
            };
            let Ok(nonce) = random() else { return };
            if self.visitors.len() == MAX_UNDECIDED {
                self.visitors.remove(0);
            }
            self.visitors.extend(Visitor::welcome(stream, address, nonce, now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Settings, hub::Hub};

    #[test]
    fn strangers_who_say_nothing_make_room_the_oldest_first() {
        let hub = Hub::start(&Settings::default()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut service = Service::new(hub.shared().clone(), listener);
        let strangers: Vec<_> =
            (0..MAX_UNDECIDED + 5).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
        let addresses: Vec<_> = strangers.iter().map(|stranger| stranger.local_addr().unwrap()).collect();
        let deadline = Instant::now() + Duration::from_secs(30);
        while service.visitors.last().is_none_or(|visitor| Some(&visitor.address) != addresses.last()) {
            assert!(Instant::now() < deadline, "the last one is not let in");
            service.welcome(Instant::now());
        }
        let here: Vec<_> = service.visitors.iter().map(|visitor| visitor.address).collect();
        assert_eq!(here, addresses[5..]);
    }
}
