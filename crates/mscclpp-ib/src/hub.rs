//! What a process needs once, however many connections it has: the opened adapters, the links to peers, and one thread.
//! The thread answers peers that open queues, stores tokens for peers without atomics, and takes events of the
//! adapters.
//!
//! # Invariants
//! 1. The thread never blocks except in its event loop, so stopping it takes a bounded time. It takes only locks whose
//!    holders never wait.
//! 2. A thread that waits for a token may serve the receiving ends that bring it, instead of the hub's thread. One thread
//!    at a time serves an end, under its lock, which a waiting thread holds for one look. The hub's thread serves an end
//!    after each event of it, and from time to time. If it finds the lock taken for long, it leaves the end to the waiting
//!    thread until the next time. Only the hub's thread closes an end, and for that it waits for the lock.
//! 3. A receiving end lives as long as its endpoint and the TCP connection over which its queue was opened. The peer
//!    ends that connection only when everything it sent has completed.
//! 4. A turn of the thread has an end, whatever comes meanwhile: it takes the commands that were there when it began, a few
//!    events of each source, and of each receiver a few completions for an event. An armed completion queue makes an event
//!    behind those of others, so none is passed over for ever.

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
    words::Words,
};

/// The service of one provider. Stopped when the last endpoint, link and registration is gone.
pub(crate) struct Hub {
    /// Ends before the links do.
    _thread: ServiceThread<Command>,
    links: Arc<Links>,
    shared: Arc<Shared>,
    pub(crate) words: Arc<Words>,
    /// Whether regions have a key of their own for data, which may then overtake other data. What is written with the
    /// other key, which words have, stays behind everything before.
    pub(crate) relaxes_data: bool,
}

/// What the thread shares with the rest of the process.
struct Shared {
    verbs: &'static Verbs,
    adapters: Mutex<HashMap<String, Arc<Adapter>>>,
    /// Those that peers may open queues to.
    endpoints: Mutex<HashMap<Name, Side>>,
    links: Mutex<Vec<Weak<LinkState>>>,
    words: Arc<Words>,
    /// The receiving ends that bring tokens, by the endpoints that they connect.
    inbound: RwLock<BTreeMap<EndpointPair, Vec<(u64, SharedReceiver)>>>,
    commands: Arc<Commands<Command>>,
}

type SharedReceiver = Arc<Mutex<Receiver>>;

/// What a dropped queue has under way: called again and again until it says that nothing is left, and then dropped.
pub(crate) type Unfinished = Box<dyn FnMut() -> bool + Send>;

/// What other threads ask the hub's thread to do.
pub(crate) enum Command {
    /// An adapter was opened.
    Adapter(Arc<Adapter>),
    /// A peer opens a queue.
    Accept(Box<DataConnection>, Admission),
    CloseEndpoint(Name),
    /// A queue was dropped with something under way.
    Drain(Unfinished),
    /// A receiving end was found to be over, by its number.
    Close(u64),
    Stop,
}

/// Hands queues that peers open to the thread.
struct QueueAcceptor(Arc<Shared>);

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
        let shared = Arc::new(Shared {
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

    /// The adapter of that name, opened at the first use.
    pub(crate) fn adapter(&self, name: &str) -> Result<Arc<Adapter>> {
        let mut adapters = self.shared.adapters.lock();
        if let Some(adapter) = adapters.get(name) {
            return Ok(adapter.clone());
        }
        let adapter = Adapter::open(self.shared.verbs, name)?;
        self.send(Command::Adapter(adapter.clone()));
        adapters.insert(name.to_owned(), adapter.clone());
        Ok(adapter)
    }

    /// Opens an endpoint to which peers can connect.
    pub(crate) fn open_endpoint(&self, side: Side) -> Result<Address> {
        let address = self.links.open_endpoint()?;
        self.shared.endpoints.lock().insert(address.name, side);
        Ok(address)
    }

    /// Says goodbye to the endpoint's peers, and accepts no more.
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

    /// Takes what has come from the peer, for a thread that waits for it. Whether something had.
    pub(crate) fn progress_inbound(&self, endpoints: &EndpointPair) -> bool {
        let mut has_come = false;
        let inbound = self.shared.inbound.read();
        for (number, receiver) in inbound.get(endpoints).into_iter().flatten() {
            // Served by another thread now: then that does what there is.
            let Some(mut receiver) = receiver.try_lock() else { continue };
            match receiver.serve_for_waiter() {
                Served::All => {}
                Served::Some => has_come = true,
                Served::Over => self.shared.commands.send(Command::Close(*number)),
            }
        }
        has_come
    }

    /// Fails the link when its adapter or port does.
    pub(crate) fn watch_link(&self, link: &Arc<LinkState>) {
        let mut links = self.shared.links.lock();
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(link));
    }
}
