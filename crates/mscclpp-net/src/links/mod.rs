//! Links between endpoints of processes: idle TCP connections that show when a peer dies or closes its endpoint.
//!
//! A transport has one [`Links`]: a listener, and one thread that accepts connections, does handshakes, and watches.
//! It opens endpoints, whose [`Address`] is sent to peers. A peer dials this address and gets a [`Link`], whose
//! [`LinkEvents`] are called when the endpoint's owner goes. A link goes one way: only the owner of the endpoint
//! speaks on it. Two endpoints that watch each other have one link each.
//!
//! ```
//! use std::{
//!     sync::{Arc, mpsc::{Sender, channel}},
//!     time::Duration,
//! };
//! use mscclpp_net::links::{Address, LinkEnd, LinkEvents, Links, Options, Protocol};
//!
//! const PROTOCOL: Protocol = Protocol { name: "an-example", title: "example", magic: *b"EXAM", version: 1 };
//!
//! /// Forwards the end of a link.
//! struct Heard(Sender<String>);
//! impl LinkEvents for Heard {
//!     fn ended(&self, end: LinkEnd) {
//!         let _ = self.0.send(end.to_string());
//!     }
//! }
//!
//! let links = Links::start(PROTOCOL, Options::default())?;
//! let (here, there) = (links.open_endpoint()?, links.open_endpoint()?);
//! // These bytes travel to the peer, which is usually another process.
//! let peer = Address::decode(&PROTOCOL, &there.encode(&PROTOCOL))?;
//! let (tell, heard) = channel();
//! let _link = links.dial(&peer, true, here.name, Arc::new(Heard(tell)))?;
//!
//! links.close_endpoint(there.name);
//! assert_eq!(heard.recv_timeout(Duration::from_secs(10))?, "the peer closed its endpoint");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A transport whose data travels over TCP too opens further connections beside a link ([`Link::open_data`]); the
//! other side's [`Acceptor`] takes them. Each message on them is a [`header`], followed by the bytes that the
//! transport adds.
//!
//! # Invariants
//! 1. The thread never blocks except in its event loop, so stopping it takes a bounded time. It takes only locks
//!    whose holders never wait. [`LinkEvents`] and [`Acceptor`], which it calls, must not block.
//! 2. A link is open as long as the endpoint it leads to. An endpoint that closes says goodbye first; a process that
//!    dies does not. So a peer that left differs from one that is lost. A failure of a data connection is only a
//!    suspicion.
//! 3. Little is said on a link before it ends. It always fits the socket's buffer, so nothing waits to be sent.
//! 4. A side that takes a peer for lost tells it so, on the peer's links to the same endpoint: the peer may be alive,
//!    and wait there for data that will never be sent.

mod accepted;
mod address;
mod data;
mod dial;
mod error;
mod events;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod handshake;
pub mod header;
mod inbound;
mod link;
mod message;
mod outbound;
mod protocol;
mod race;
mod service;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use parking_lot::Mutex;

use crate::{
    SystemCall,
    env::Env,
    event_loop::{Commands, ServiceThread},
    interface::{self, Family},
    key::Key,
    random,
    socket::{Liveness, listen, listen_everywhere},
};

pub use address::{Address, Name};
pub use data::{Acceptor, Admission, DataConnection};
pub use error::Error;
pub use events::{LinkEnd, LinkEvents};
pub use link::{Failures, Link, Suspicions};
pub use protocol::Protocol;

use error::Result;
use handshake::{Purpose, Request};
use message::Message;
use outbound::OutboundLink;

/// Options of [`Links::start`].
pub struct Options {
    /// The network interface whose addresses are offered to peers. If `None`, `MSCCLPP_SOCKET_IFNAME` decides, if it
    /// is set.
    pub interface: Option<String>,
    /// The family of the addresses that are offered to peers. If `None`, `MSCCLPP_SOCKET_FAMILY` decides, if it is
    /// set.
    pub family: Option<Family>,
    /// The name of the thread. The system shows its first 15 bytes.
    pub thread: &'static str,
    /// The acceptor of connections that carry data. If `None`, such connections are refused.
    pub acceptor: Option<Arc<dyn Acceptor>>,
    /// The time that a suspected link is given to end for a reason of its own.
    pub grace: Duration,
}

impl Default for Options {
    fn default() -> Self {
        let grace = Duration::from_secs(1);
        Self { interface: None, family: None, thread: "mscclpp-links", acceptor: None, grace }
    }
}

/// The endpoints of a transport in this process, and their links. Dropping it stops its thread, which takes moments.
/// Links of endpoints that are still open then end without a goodbye.
pub struct Links {
    shared: Arc<LinksState>,
    _thread: ServiceThread<Command>,
}

/// The state that the thread shares with the rest of the process.
struct LinksState {
    protocol: Protocol,
    addresses: Vec<IpAddr>,
    port: u16,
    grace: Duration,
    endpoints: Mutex<HashMap<Name, Key>>,
    /// The number of data connections that peers have open.
    admitted: AtomicUsize,
    commands: Arc<Commands<Command>>,
}

enum Command {
    /// Report the end of this link.
    Watch(OutboundLink),
    /// Report nothing more about this link.
    Unwatch { link: u64 },
    /// Suspect that link, because something went wrong with one of its connections. If the link does not end by
    /// itself shortly, it ends for this reason.
    Suspect { link: u64, reason: String },
    /// Send `told`, a text that may be empty, and then `message` to the peer, because something went wrong on a data connection.
    Report { request: Request, message: Message, told: String, reason: String },
    /// Tell the peer to which that link leads that this side has failed.
    TellFailure { request: Request, reason: String },
    /// Say goodbye to the endpoint's peers.
    CloseEndpoint { name: Name },
    /// End the thread.
    Stop,
}

impl Links {
    /// Listens, and starts the thread. Reads the environment; `options` take precedence over it.
    ///
    /// # Errors
    /// If there is no such interface or no address, or if the system has no room for a socket or a thread.
    pub fn start(protocol: Protocol, options: Options) -> Result<Arc<Self>> {
        let env = Env::read()?;
        let (name, family) = (options.interface.or(env.interface), options.family.or(env.family));
        let mut addresses = interface::candidates(&interface::list()?, name.as_deref(), family)?;
        addresses.truncate(address::MAX_ADDRESSES);
        let listener = match *addresses {
            [] => return Err(Error::NoAddress),
            [ip] => listen(SocketAddr::new(ip, 0), None),
            _ => listen_everywhere(true, None),
        };
        let listener = listener.during("listening for peers")?;
        let port = listener.local_addr().during("asking for the port that peers connect to")?.port();
        tracing::debug!(target: "mscclpp::conn", ?addresses, port, "listening for {} peers", protocol.title);
        let shared = Arc::new(LinksState {
            protocol,
            addresses,
            port,
            grace: options.grace,
            endpoints: Mutex::default(),
            admitted: AtomicUsize::new(0),
            commands: Arc::new(Commands::new()?),
        });
        let service = service::Service::new(shared.clone(), listener, options.acceptor)?;
        let run = move || service.run();
        let thread = ServiceThread::start(options.thread, &shared.commands, || Command::Stop, run)?;
        Ok(Arc::new(Self { shared, _thread: thread }))
    }

    /// Opens an endpoint to which peers can connect until [`Links::close_endpoint`].
    ///
    /// # Errors
    /// If the system has no random bytes.
    pub fn open_endpoint(&self) -> Result<Address> {
        let (name, key) = (random()?, Key::from_bytes(random()?));
        self.shared.endpoints.lock().insert(name, key.clone());
        Ok(Address { name, key, addresses: self.shared.addresses.clone(), port: self.shared.port })
    }

    /// Says goodbye to the endpoint's peers, and accepts no more of them. Never blocks.
    pub fn close_endpoint(&self, name: Name) {
        self.shared.endpoints.lock().remove(&name);
        self.shared.commands.send(Command::CloseEndpoint { name });
    }

    /// Opens a link from an endpoint of this process to a peer's endpoint. `same_host` says that the peer is on this
    /// node; its loopback addresses are then tried first. Blocks for at most about 10 seconds. `events` may be called
    /// before this returns.
    ///
    /// # Errors
    /// If the peer is gone, speaks another version, has closed its endpoint, or cannot be reached.
    pub fn dial(
        self: &Arc<Self>,
        peer: &Address,
        same_host: bool,
        from: Name,
        events: Arc<dyn LinkEvents>,
    ) -> Result<Link> {
        let protocol = self.shared.protocol;
        let link = u64::from_le_bytes(random()?);
        let request = Request { endpoint: peer.name, from, link, purpose: Purpose::Link };
        let (stream, session, address) =
            dial::dial(protocol, &peer.candidates(same_host), &peer.key, &request)?;
        Liveness::PROMPT.apply(&stream).during("setting up a link")?;
        let outbound = OutboundLink::new(stream, request, address, &session, events);
        self.shared.commands.send(Command::Watch(outbound));
        tracing::debug!(target: "mscclpp::conn", %address, "{} link opened", protocol.title);
        Ok(Link { links: self.clone(), request, key: peer.key.clone(), address })
    }
}

impl LinksState {
    fn key_of(&self, name: &Name) -> Option<Key> {
        self.endpoints.lock().get(name).cloned()
    }
}
