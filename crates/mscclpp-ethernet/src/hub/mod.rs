//! What a process needs once, however many connections it has: a listener, and one thread that accepts, shakes hands,
//! and sees peers go.
//!
//! # Invariants
//! 1. The thread never blocks but in its event loop, so stopping it is bounded. It takes locks that nobody holds while waiting.
//! 2. A link is open as long as the endpoint it leads to. Closing that says goodbye first, dying does not. That tells a
//!    peer that left from one that is lost; what happens to connections that carry data is never more than a suspicion.
//! 3. Data is received by a thread for each connection, which only ever touches memory in the table of regions.

mod accepted;
mod link_state;
mod links;
mod receivers;
mod service;

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr, TcpStream},
    sync::Arc,
    thread::JoinHandle,
};

use mscclpp_net::{
    env::Env,
    event_loop::{self, Commands},
    interface,
    key::Key,
    random,
    socket::{listen, listen_everywhere},
};
use parking_lot::Mutex;

use crate::{
    Settings,
    blob::{EndpointBlob, MAX_ADDRESSES},
    error::{Error, Result, SystemCall},
    protocol::{
        frame::Inbound,
        handshake::{Name, Request},
    },
    receiving,
    regions::Regions,
};
pub(crate) use link_state::LinkState;

/// The service of one provider. Stopped when the last endpoint, link and registration is gone.
pub(crate) struct Hub {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the thread shares with the rest of the process.
pub(crate) struct Shared {
    settings: Settings,
    addresses: Vec<IpAddr>,
    port: u16,
    endpoints: Mutex<HashMap<Name, Key>>,
    commands: Arc<Commands<Command>>,
    regions: Arc<Regions>,
}

enum Command {
    Watch {
        stream: TcpStream,
        inbound: Inbound,
        link: Arc<LinkState>,
    },
    Unwatch {
        link: u64,
    },
    /// Something went wrong with a connection of that link. If the link does not end by itself shortly, it ends for that
    /// reason.
    Suspect {
        link: u64,
        reason: String,
    },
    /// The thread of a connection that carries data has ended.
    Ended {
        receiver: u64,
        request: Request,
        end: receiving::End,
    },
    CloseEndpoint {
        name: Name,
    },
    Stop,
}

impl Hub {
    pub(crate) fn start(settings: &Settings) -> Result<Arc<Self>> {
        let env = Env::read()?;
        let (name, family) = (settings.interface.clone().or(env.interface), settings.family.or(env.family));
        let interfaces = interface::list()?;
        let mut addresses = interface::candidates(&interfaces, name.as_deref(), family)?;
        addresses.truncate(MAX_ADDRESSES);
        let listener = match *addresses {
            [] => return Err(Error::NoAddress),
            [ip] => listen(SocketAddr::new(ip, 0), None),
            _ => listen_everywhere(true, None),
        };
        let listener = listener.during("listening for peers")?;
        let port = listener.local_addr().during("asking for the port that peers connect to")?.port();
        tracing::debug!(target: "mscclpp::conn", ?addresses, port, "listening for Ethernet peers");
        let commands = Commands::new()?;
        let shared = Arc::new(Shared {
            settings: settings.clone(),
            addresses,
            port,
            endpoints: Mutex::default(),
            commands: Arc::new(commands),
            regions: Arc::default(),
        });
        let service = service::Service::new(shared.clone(), listener)?;
        let thread = std::thread::Builder::new()
            .name("mscclpp-eth-hub".to_owned())
            .spawn(move || service.run())
            .during("starting the thread that serves peers")?;
        Ok(Arc::new(Self { shared, thread: Mutex::new(Some(thread)) }))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Lets peers connect to a new endpoint.
    pub(crate) fn open_endpoint(&self) -> Result<EndpointBlob> {
        let (name, key) = (random()?, Key::from_bytes(random()?));
        self.shared.endpoints.lock().insert(name, key.clone());
        Ok(EndpointBlob { name, key, addresses: self.shared.addresses.clone(), port: self.shared.port })
    }

    /// Says goodbye to the endpoint's peers, and takes no more from them.
    pub(crate) fn close_endpoint(&self, name: Name) {
        self.shared.endpoints.lock().remove(&name);
        self.shared.commands.send(Command::CloseEndpoint { name });
    }

    /// Watches over a link until [`Hub::unwatch`] or its end.
    pub(crate) fn watch(&self, stream: TcpStream, inbound: Inbound, link: Arc<LinkState>) {
        self.shared.commands.send(Command::Watch { stream, inbound, link });
    }

    pub(crate) fn unwatch(&self, link: u64) {
        self.shared.commands.send(Command::Unwatch { link });
    }
}

impl Shared {
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn regions(&self) -> &Arc<Regions> {
        &self.regions
    }

    pub(crate) fn suspect(&self, link: u64, reason: String) {
        self.commands.send(Command::Suspect { link, reason });
    }

    fn key_of(&self, name: &Name) -> Option<Key> {
        self.endpoints.lock().get(name).cloned()
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.shared.commands.send(Command::Stop);
        let Some(thread) = self.thread.lock().take() else { return };
        if event_loop::join(thread).is_err() {
            tracing::error!(target: "mscclpp::conn", "the thread that serves peers had panicked");
        }
    }
}
