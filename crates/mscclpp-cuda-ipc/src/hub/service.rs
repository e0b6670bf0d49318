//! The thread that answers requests and notices when peers go.

use std::{
    collections::{BTreeMap, HashMap},
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use mscclpp_core::LinkMonitor;
use mscclpp_net::event_loop::{ACCEPT_PAUSE, EventLoop, Listener, Ready};
use mscclpp_net::{Report, SystemError};
use mscclpp_os::waiting::Repeated;
use rustix::io::Errno;

use crate::{
    error::Error,
    message::{Handle, Name, Refusal, Request, Token},
    socket,
};

use super::{Command, HubState};

/// The packet that an endpoint sends to its peers before it closes.
const GOODBYE: u8 = b'B';
/// The first byte of the packet in which an endpoint says that its side has failed, and why.
const FAILED: u8 = b'F';
/// How long a peer that has connected may take to make its request.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// The most connections without a request that may be open; further ones wait at the listener.
const MAX_ACCEPTED: usize = 1024;
/// The most connections that are accepted before other sockets have their turn again.
const ACCEPTED_AT_ONCE: usize = 64;

pub(super) struct Service {
    shared: Arc<HubState>,
    events: EventLoop<Command>,
    listener: Listener<OwnedFd>,
    /// Connections by their tokens in the event loop; the same holds for the two maps below.
    accepted: BTreeMap<u64, Accepted>,
    inbound: HashMap<u64, Inbound>,
    outbound: HashMap<u64, Outbound>,
    turned_away: Repeated,
}

/// A connection whose request has not come yet.
struct Accepted {
    socket: OwnedFd,
    deadline: Instant,
}

/// A peer's connection to an endpoint of this process. Only this side sends on it.
struct Inbound {
    socket: OwnedFd,
    endpoint: Token,
    /// The peer's endpoint.
    from: Name,
}

/// A connection from this process to a peer's endpoint.
struct Outbound {
    id: u64,
    socket: OwnedFd,
    monitor: LinkMonitor,
}

impl Service {
    pub(super) fn new(shared: Arc<HubState>, listener: OwnedFd) -> Result<Self, SystemError> {
        let events = EventLoop::new(shared.commands.clone())?;
        Ok(Self {
            shared,
            listener: Listener::new(&events, listener)?,
            events,
            accepted: BTreeMap::new(),
            inbound: HashMap::new(),
            outbound: HashMap::new(),
            turned_away: Repeated::default(),
        })
    }

    pub(super) fn run(mut self) {
        loop {
            let ready = self.events.wait_or_retry(self.wake_at());
            if !self.run_commands() {
                return;
            }
            for Ready { token, .. } in &ready {
                self.read_outbound(*token);
                self.read_inbound(*token);
                self.read_request(*token);
            }
            let now = Instant::now();
            self.drop_overdue(now);
            if self.listener.is_due(&ready, now) {
                self.accept(now);
            }
        }
    }

    /// Returns the next deadline.
    fn wake_at(&self) -> Option<Instant> {
        // All connections have the same time limit, so that of the oldest is the next.
        let request = self.accepted.first_key_value().map(|(_, accepted)| accepted.deadline);
        request.into_iter().chain(self.listener.resume_at).min()
    }

    /// Carries out the commands of other threads. Returns false to stop.
    fn run_commands(&mut self) -> bool {
        let commands = self.shared.commands.clone();
        for command in commands.take() {
            match command {
                Command::Watch { id, socket, monitor } => match self.events.add(&socket) {
                    Ok(token) => {
                        self.outbound.insert(token, Outbound { id, socket, monitor });
                    }
                    Err(error) => monitor.fail(Error::from(error).into()),
                },
                Command::Unwatch { id } => self.outbound.retain(|_, outbound| outbound.id != id),
                Command::CloseEndpoint { token } => self.inbound.retain(|_, inbound| {
                    let leads_there = inbound.endpoint == token;
                    if leads_there {
                        socket::answer(&inbound.socket, &[GOODBYE], None);
                    }
                    !leads_there
                }),
                Command::TellFailure { token, peer, reason } => {
                    let packet = [&[FAILED], reason.as_bytes()].concat();
                    let theirs = |inbound: &&Inbound| inbound.endpoint == token && inbound.from == peer;
                    let told = self.inbound.values().filter(theirs);
                    told.for_each(|inbound| socket::answer(&inbound.socket, &packet, None));
                }
                Command::Stop => return false,
            }
        }
        true
    }

    /// Notices that the peer has closed its endpoint, after a goodbye, or has failed, or is gone.
    fn read_outbound(&mut self, token: u64) {
        let Some(outbound) = self.outbound.get(&token) else { return };
        // A longer packet is cut.
        let mut packet = [0; 1 + LinkMonitor::MAX_REASON];
        let received = socket::receive(&outbound.socket, &mut packet).map(|(len, _)| &packet[..len]);
        if matches!(received, Err(Errno::AGAIN | Errno::INTR)) {
            return;
        }
        let Some(Outbound { monitor, .. }) = self.outbound.remove(&token) else { return };
        match received {
            Ok([GOODBYE]) => monitor.closed(),
            Ok([FAILED, reason @ ..]) => monitor.peer_failed(reason),
            Ok([]) | Err(_) => monitor.lost("its process ended (its socket closed without a goodbye)"),
            Ok(_) => monitor.lost("it sent something that is not of this protocol"),
        }
    }

    /// Removes a connection that the peer has closed: it has nothing to send before that.
    fn read_inbound(&mut self, token: u64) {
        let Some(inbound) = self.inbound.get(&token) else { return };
        if !matches!(socket::receive(&inbound.socket, &mut [0]).map(drop), Err(Errno::AGAIN | Errno::INTR)) {
            self.inbound.remove(&token);
        }
    }

    fn read_request(&mut self, token: u64) {
        let Some(accepted) = self.accepted.get(&token) else { return };
        let mut bytes = [0; Request::LEN + 1];
        let received = match socket::receive(&accepted.socket, &mut bytes) {
            Err(Errno::AGAIN | Errno::INTR) => return,
            received => received,
        };
        let Some(Accepted { socket, .. }) = self.accepted.remove(&token) else { return };
        if let Ok((len @ 1.., _)) = received
            && let Some((endpoint, from)) = self.answer(&socket, &bytes[..len])
        {
            self.inbound.insert(token, Inbound { socket, endpoint, from });
        }
    }

    /// Answers a request. Returns the endpoint's token and the peer's name if the peer stays connected to the
    /// endpoint.
    fn answer(&self, socket: &OwnedFd, request: &[u8]) -> Option<(Token, Name)> {
        let refuse = |refusal| {
            tracing::debug!(target: "mscclpp::conn", ?refusal, "refused a request");
            socket::answer(socket, &Handle::encode(Err(refusal)), None);
            None
        };
        match Request::decode(request) {
            Err(refusal) => refuse(refusal),
            Ok(Request::Link { token, from }) => {
                if !self.shared.knows_endpoint(&token) {
                    return refuse(Refusal::Unknown);
                }
                socket::answer(socket, &Handle::encode(Ok(Handle::None)), None);
                Some((token, from))
            }
            Ok(Request::Fetch { token, id }) => match self.shared.export(id, &token) {
                Some(export) => {
                    let (handle, descriptor) = export.handle();
                    socket::answer(socket, &Handle::encode(Ok(handle)), descriptor);
                    None
                }
                None => refuse(Refusal::Unknown),
            },
        }
    }

    fn drop_overdue(&mut self, now: Instant) {
        while let Some(oldest) = self.accepted.first_entry()
            && oldest.get().deadline <= now
        {
            oldest.remove();
        }
    }

    fn accept(&mut self, now: Instant) {
        // The loop is bounded, so that other connections have their turn in between.
        for _ in 0..ACCEPTED_AT_ONCE {
            if self.accepted.len() >= MAX_ACCEPTED {
                self.listener.resume_at = Some(now + ACCEPT_PAUSE);
                return;
            }
            let Some(socket) = self.listener.accept(now, socket::accept) else { return };
            if let Err((theirs, _)) = socket::user_fits(&socket) {
                if let Some(times) = self.turned_away.another(now) {
                    tracing::warn!(
                        target: "mscclpp::conn", user = theirs, "turned away a process of another user{times}"
                    );
                }
                socket::answer(&socket, &Handle::encode(Err(Refusal::User)), None);
                continue;
            }
            match self.events.add(&socket) {
                Ok(token) => {
                    self.accepted.insert(token, Accepted { socket, deadline: now + REQUEST_LIMIT });
                }
                Err(error) => {
                    tracing::warn!(target: "mscclpp::conn", error = %Report(&error), "cannot serve a peer");
                }
            }
        }
        self.listener.resume_at = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use mscclpp_net::event_loop::Commands;

    use super::*;

    #[test]
    fn who_connects_again_and_again_does_not_keep_the_thread_from_others() {
        let address = format!("mscclpp-test-{}", std::process::id());
        let listener = socket::listener(&address).unwrap();
        let commands = Arc::new(Commands::new().unwrap());
        let shared = HubState { address: address.clone(), tables: Default::default(), commands };
        let mut service = Service::new(Arc::new(shared), listener).unwrap();
        let peers: Vec<OwnedFd> =
            (0..ACCEPTED_AT_ONCE + 1).map(|_| socket::connect_to(&address).unwrap()).collect();
        let now = Instant::now();
        service.accept(now);
        assert_eq!((service.accepted.len(), service.listener.resume_at), (ACCEPTED_AT_ONCE, Some(now)));
        service.accept(now);
        assert_eq!((service.accepted.len(), service.listener.resume_at), (peers.len(), None));
    }
}
