//! The state that a process needs once, however many connections it has: the opened adapters, the links to peers, and
//! one thread. The thread answers peers that open queues, stores tokens for peers without atomics, and handles events
//! of the adapters.
//!
//! # Invariants
//! 1. The thread never blocks except in its event loop, so stopping it takes a bounded time. It takes only locks
//!    whose holders never wait.
//! 2. A thread that waits for a token may serve the receiving ends that bring it, instead of the hub's thread. One
//!    thread at a time serves an end, under its lock, which a waiting thread holds for a single round of polling. The
//!    hub's thread serves an end after each event of it, and from time to time. If it finds the lock held for long,
//!    it leaves the end to the waiting thread until the next time. Only the hub's thread closes an end, once no
//!    other thread serves it.
//! 3. A receiving end lives as long as its endpoint and the TCP connection over which its queue was opened. The peer
//!    ends that connection only when everything it sent has completed.
//! 4. A turn of the thread is bounded, whatever comes meanwhile: it takes the commands that were there when it began,
//!    a few events of each source, and a few completions of each receiver per event. An armed completion queue puts
//!    its event behind those of the others, so no queue starves.

mod service;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Weak},
};

use mscclpp_net::{
    SystemError,
    event_loop::{Commands, ServiceThread},
    links::{Acceptor, Address, Admission, DataConnection, LinkEvents, Links, Name, Options},
};
use mscclpp_verbs_sys::Verbs;
use parking_lot::{Mutex, RwLock};

use crate::{
    adapter::Adapter,
    blob::PROTOCOL,
    error::Result,
    receiver::{Receiver, Served},
    side::{EndpointPair, LinkState, Side},
    words::WordRegions,
};

/// The service of one provider. It stops when the last endpoint, link and registration is gone.
pub(crate) struct Hub {
    /// The thread, which ends before the links do.
    _thread: ServiceThread<Command>,
    links: Arc<Links>,
    shared: Arc<HubState>,
    pub(crate) words: Arc<WordRegions>,
    /// Whether regions have a separate key for data, which may then overtake other data. Writes with the other key,
    /// which words use, stay behind everything before them.
    pub(crate) relaxes_data: bool,
}

/// The state that the thread shares with the rest of the process.
struct HubState {
    verbs: &'static Verbs,
    adapters: Mutex<HashMap<String, Arc<Adapter>>>,
    /// The endpoints to which peers may open queues.
    endpoints: Mutex<HashMap<Name, Side>>,
    links: Mutex<Vec<Weak<LinkState>>>,
    words: Arc<WordRegions>,
    /// The receiving ends that bring tokens, by the endpoints that they connect.
    inbound: RwLock<BTreeMap<EndpointPair, Vec<(u64, SharedReceiver)>>>,
    commands: Arc<Commands<Command>>,
}

type SharedReceiver = Arc<Mutex<Receiver>>;

/// The requests that a dropped queue still has under way. The function is called again and again until it returns
/// false, and then dropped.
pub(crate) type Unfinished = Box<dyn FnMut() -> bool + Send>;

/// A command of another thread to the hub's thread.
pub(crate) enum Command {
    /// Watch an adapter that was opened.
    Adapter(Arc<Adapter>),
    /// Answer a peer that opens a queue.
    Accept(Box<DataConnection>, Admission),
    CloseEndpoint(Name),
    /// Finish a queue that was dropped with requests under way.
    Drain(Unfinished),
    /// Close the receiving end with this number, which was found to be over.
    Close(u64),
    Stop,
}

/// Passes queues that peers open to the hub's thread.
struct QueueAcceptor(Arc<HubState>);

impl Acceptor for QueueAcceptor {
    fn accept(&self, connection: DataConnection, admission: Admission) -> Result<(), SystemError> {
        self.0.commands.send(Command::Accept(Box::new(connection), admission));
        Ok(())
    }

    fn close_endpoint(&self, name: &Name) {
        self.0.commands.send(Command::CloseEndpoint(*name));
    }
}

impl Hub {
    pub(crate) fn start(verbs: &'static Verbs, relaxes_data: bool) -> Result<Arc<Self>> {
        let shared = Arc::new(HubState {
            verbs,
            adapters: Mutex::default(),
            endpoints: Mutex::default(),
            links: Mutex::default(),
            words: Arc::default(),
            inbound: RwLock::default(),
            commands: Arc::new(Commands::new()?),
        });
        let acceptor: Arc<dyn Acceptor> = Arc::new(QueueAcceptor(shared.clone()));
        let options = Options { thread: "mscclpp-ib-link", acceptor: Some(acceptor), ..Options::default() };
        let links = Links::start(PROTOCOL, options)?;
        let service = service::Service::new(shared.clone())?;
        let run = move || service.run();
        let thread = ServiceThread::start("mscclpp-ib-hub", &shared.commands, || Command::Stop, run)?;
        let words = shared.words.clone();
        Ok(Arc::new(Self { _thread: thread, links, shared, words, relaxes_data }))
    }

    pub(crate) fn send(&self, command: Command) {
        self.shared.commands.send(command);
    }

    /// Returns the adapter of that name, which is opened at the first use.
    pub(crate) fn adapter(&self, name: &str) -> Result<Arc<Adapter>> {
        let known = self.shared.adapters.lock().get(name).cloned();
        if let Some(adapter) = known {
            return Ok(adapter);
        }
        // The driver may block, so the lock, which the hub's thread takes, too, is not held meanwhile. If another thread
        // opens the same adapter, the first of the two is kept.
        let opened = Adapter::open(self.shared.verbs, name)?;
        let mut adapters = self.shared.adapters.lock();
        let kept = adapters.entry(name.to_owned()).or_insert_with(|| {
            self.send(Command::Adapter(opened.clone()));
            opened.clone()
        });
        Ok(kept.clone())
    }

    /// Opens an endpoint to which peers can connect.
    pub(crate) fn open_endpoint(&self, side: Side) -> Result<Address> {
        let address = self.links.open_endpoint()?;
        self.shared.endpoints.lock().insert(address.name, side);
        Ok(address)
    }

    /// Says goodbye to the endpoint's peers, and accepts no more of them.
    pub(crate) fn close_endpoint(&self, name: Name) {
        self.shared.endpoints.lock().remove(&name);
        self.links.close_endpoint(name);
    }

    pub(crate) fn dial(
        &self,
        peer: &Address,
        same_host: bool,
        from: Name,
        events: Arc<dyn LinkEvents>,
    ) -> Result<mscclpp_net::links::Link> {
        Ok(self.links.dial(peer, same_host, from, events)?)
    }

    /// Handles what has come from the peer, for a thread that waits for it. Returns whether something had come.
    pub(crate) fn progress_inbound(&self, endpoints: &EndpointPair) -> bool {
        let mut has_come = false;
        let inbound = self.shared.inbound.read();
        for (number, receiver) in inbound.get(endpoints).into_iter().flatten() {
            // If another thread serves the receiver now, that thread handles what has come.
            let Some(mut receiver) = receiver.try_lock() else { continue };
            match receiver.serve_for_waiter() {
                Served::All => {}
                Served::Some => has_come = true,
                Served::Over => self.shared.commands.send(Command::Close(*number)),
            }
        }
        has_come
    }

    /// Registers a link that fails when its adapter or port does.
    pub(crate) fn watch_link(&self, link: &Arc<LinkState>) {
        let mut links = self.shared.links.lock();
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(link));
    }
}
