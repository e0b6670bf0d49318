//! The service thread of a process: it hands out handles of exported memory to peers, and notices when peers go.
//!
//! # Invariants
//! 1. The thread never blocks except in its event loop, so stopping it takes a bounded time. It takes only locks whose
//!    holders never wait.
//! 2. A peer's connection to an endpoint is open exactly as long as the endpoint. An endpoint that closes sends a
//!    goodbye packet first; a process that dies does not. This distinguishes a peer that left from one that is lost.
//! 3. An allocation is served while one of its registrations lives, except while it is suspended; otherwise requests are refused.

mod service;

use std::{
    collections::{HashMap, HashSet},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use mscclpp_core::LinkMonitor;
use mscclpp_gpu::ExportHandle;
use mscclpp_net::{
    event_loop::{Commands, ServiceThread},
    random,
};
use parking_lot::Mutex;
use subtle::ConstantTimeEq;

use crate::{
    error::Result,
    message::{EndpointBlob, Handle, Name, Token},
    socket,
};

/// The service of one provider. Stopped when the last endpoint, link and registration is gone.
pub(crate) struct Hub {
    shared: Arc<HubState>,
    _thread: ServiceThread<Command>,
    watches: AtomicU64,
}

/// The state that the hub's thread shares with regions and endpoints.
pub(crate) struct HubState {
    address: String,
    tables: Mutex<Tables>,
    commands: Arc<Commands<Command>>,
}

#[derive(Default)]
struct Tables {
    endpoints: HashSet<Token>,
    /// The exports, by the ids of their allocations.
    exports: HashMap<u64, Arc<Export>>,
}

enum Command {
    Watch { id: u64, socket: OwnedFd, monitor: LinkMonitor },
    Unwatch { id: u64 },
    CloseEndpoint { token: Token },
    TellFailure { token: Token, peer: Name, reason: String },
    Stop,
}

/// The handle of an allocation, which peers get if they know the token.
pub(crate) struct Export {
    pub(crate) token: Token,
    pub(crate) handle: ExportHandle,
}

impl Export {
    fn is_open_to(&self, token: &Token) -> bool {
        self.token.ct_eq(token).into()
    }

    fn handle(&self) -> (Handle, Option<BorrowedFd<'_>>) {
        match &self.handle {
            ExportHandle::FileDescriptor(fd) => (Handle::FileDescriptor, Some(fd.as_fd())),
            ExportHandle::IpcHandle(bytes) => (Handle::Ipc(*bytes), None),
            ExportHandle::Fabric(bytes) => (Handle::Fabric(*bytes), None),
        }
    }
}

impl Hub {
    pub(crate) fn start() -> Result<Arc<Self>> {
        let number = u128::from_le_bytes(random()?);
        let address = format!("mscclpp-{number:032x}");
        let listener = socket::listener(&address)?;
        let commands = Arc::new(Commands::new()?);
        let shared = Arc::new(HubState { address, tables: Mutex::default(), commands });
        let service = service::Service::new(shared.clone(), listener)?;
        let run = move || service.run();
        let thread = ServiceThread::start("mscclpp-ipc", &shared.commands, || Command::Stop, run)?;
        Ok(Arc::new(Self { shared, _thread: thread, watches: AtomicU64::new(0) }))
    }

    pub(crate) fn address(&self) -> &str {
        &self.shared.address
    }

    /// Lets peers connect to a new endpoint.
    pub(crate) fn open_endpoint(&self) -> Result<EndpointBlob> {
        let (token, name) = (random()?, Name::from_le_bytes(random()?));
        self.shared.tables.lock().endpoints.insert(token);
        Ok(EndpointBlob { token, name, address: self.shared.address.clone() })
    }

    /// Tells the peer of that name, on its links to the endpoint, that this side has failed.
    pub(crate) fn tell_failure(&self, token: Token, peer: Name, reason: String) {
        self.shared.commands.send(Command::TellFailure { token, peer, reason });
    }

    /// Sends the endpoint's peers a goodbye, and closes their connections.
    pub(crate) fn close_endpoint(&self, token: Token) {
        self.shared.tables.lock().endpoints.remove(&token);
        self.shared.commands.send(Command::CloseEndpoint { token });
    }

    pub(crate) fn shared(&self) -> &Arc<HubState> {
        &self.shared
    }

    /// Notifies `monitor` when the peer at the other end of `socket` goes. Returns the number for [`Hub::unwatch`].
    pub(crate) fn watch(&self, socket: OwnedFd, monitor: LinkMonitor) -> u64 {
        // Relaxed, as only uniqueness of the numbers matters.
        let id = self.watches.fetch_add(1, Ordering::Relaxed);
        self.shared.commands.send(Command::Watch { id, socket, monitor });
        id
    }

    pub(crate) fn unwatch(&self, id: u64) {
        self.shared.commands.send(Command::Unwatch { id });
    }
}

impl HubState {
    /// Gives `export` to peers that ask for it, until it is withdrawn.
    pub(crate) fn serve(&self, allocation: u64, export: Arc<Export>) {
        self.tables.lock().exports.insert(allocation, export);
    }

    pub(crate) fn withdraw(&self, allocation: u64) {
        self.tables.lock().exports.remove(&allocation);
    }

    fn knows_endpoint(&self, token: &Token) -> bool {
        self.tables.lock().endpoints.contains(token)
    }

    /// Returns the export of an allocation, for a peer that knows its token.
    fn export(&self, allocation: u64, token: &Token) -> Option<Arc<Export>> {
        let export = self.tables.lock().exports.get(&allocation).cloned();
        export.filter(|export| export.is_open_to(token))
    }
}
