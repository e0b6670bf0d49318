//! The one thread by which a process serves its peers: it hands out handles of exported memory, and sees peers go.
//!
//! # Invariants
//! 1. The thread never blocks but in `poll`, so stopping it is bounded. It takes locks that nobody holds while waiting.
//! 2. A peer's connection to an endpoint is open exactly as long as the endpoint: closing it says goodbye first, dying
//!    does not. That tells a peer that left from one that is lost.
//! 3. An allocation is served while one of its registrations lives; afterwards the answer is a refusal.

use std::{
    collections::{HashMap, HashSet},
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use mscclpp_core::LinkMonitor;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::{
    error::{Error, Result, SystemCall},
    message::{EndpointBlob, Handle, Refusal, Reply, Request, Token},
    region::{Export, Imports},
    socket,
};

/// What an endpoint sends to its peers before it closes.
const GOODBYE: u8 = b'B';
/// How long a visitor may take to say what it wants.
const VISITOR_TIMEOUT: Duration = Duration::from_secs(5);
/// How many visitors may be undecided at once; more wait at the listener.
const MAX_UNDECIDED: usize = 1024;
/// How long visitors wait at the listener when the system has no descriptor or memory for them.
const REST: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The service of one provider. Stopped when the last endpoint, link and registration is gone.
pub(crate) struct Hub {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    pub(crate) imports: Imports,
}

pub(crate) struct Shared {
    address: String,
    wake: OwnedFd,
    tables: Mutex<Tables>,
    commands: Mutex<Vec<Command>>,
}

#[derive(Default)]
struct Tables {
    endpoints: HashSet<Token>,
    /// By the id of their allocation.
    exports: HashMap<u64, Arc<Export>>,
}

enum Command {
    Watch { id: u64, socket: OwnedFd, monitor: LinkMonitor },
    Unwatch { id: u64 },
    CloseEndpoint { token: Token },
    Stop,
}

impl Hub {
    pub(crate) fn start() -> Result<Arc<Self>> {
        let address = format!("mscclpp-{:032x}", u128::from_le_bytes(random()?));
        let listener = socket::listener(&address)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .during("making an event descriptor")?;
        let shared = Arc::new(Shared { address, wake, tables: Mutex::default(), commands: Mutex::default() });
        let service = Service {
            shared: shared.clone(),
            listener,
            visitors: Vec::new(),
            watched: Vec::new(),
            resting: false,
        };
        let thread = std::thread::Builder::new()
            .name("mscclpp-ipc".to_owned())
            .spawn(move || service.run())
            .map_err(Error::Thread)?;
        Ok(Arc::new(Self { shared, thread: Mutex::new(Some(thread)), imports: Imports::default() }))
    }

    pub(crate) fn address(&self) -> &str {
        &self.shared.address
    }

    /// Lets peers connect to a new endpoint.
    pub(crate) fn open_endpoint(&self) -> Result<EndpointBlob> {
        let token = random()?;
        self.shared.tables.lock().endpoints.insert(token);
        Ok(EndpointBlob { token, address: self.shared.address.clone() })
    }

    /// Says goodbye to the endpoint's peers.
    pub(crate) fn close_endpoint(&self, token: Token) {
        self.shared.tables.lock().endpoints.remove(&token);
        self.shared.command(Command::CloseEndpoint { token });
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Tells `monitor` when the peer at the other end of `socket` goes. The answer ends the watch.
    pub(crate) fn watch(&self, socket: OwnedFd, monitor: LinkMonitor) -> Result<u64> {
        let id = u64::from_le_bytes(random()?);
        self.shared.command(Command::Watch { id, socket, monitor });
        Ok(id)
    }

    pub(crate) fn unwatch(&self, id: u64) {
        self.shared.command(Command::Unwatch { id });
    }
}

impl Shared {
    fn command(&self, command: Command) {
        self.commands.lock().push(command);
        self.ring();
    }

    fn ring(&self) {
        // The counter being full (EAGAIN) rings as well; nothing else can happen to an eventfd.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Gives `export` to peers that ask for it, until it is withdrawn.
    pub(crate) fn serve(&self, allocation: u64, export: &Arc<Export>) {
        self.tables.lock().exports.insert(allocation, export.clone());
    }

    pub(crate) fn withdraw(&self, allocation: u64) {
        self.tables.lock().exports.remove(&allocation);
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.shared.command(Command::Stop);
        let Some(thread) = self.thread.lock().take() else { return };
        // The last owner may be a semaphore that the service thread itself was aborting: it then ends by itself.
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            tracing::error!(target: "mscclpp::conn", "the thread that serves peers had panicked");
        }
    }
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|_| rustix::io::Errno::NOSYS).during("drawing random bytes")?;
    Ok(bytes)
}

struct Service {
    shared: Arc<Shared>,
    listener: OwnedFd,
    visitors: Vec<Visitor>,
    watched: Vec<Watched>,
    /// The system refused to accept the last visitor.
    resting: bool,
}

/// Somebody who connected to us.
struct Visitor {
    socket: OwnedFd,
    /// The endpoint it is linked to, or since when it has been undecided.
    state: Result<Token, Instant>,
}

/// Somebody we connected to.
struct Watched {
    id: u64,
    socket: OwnedFd,
    monitor: LinkMonitor,
}

impl Service {
    fn run(mut self) {
        loop {
            let ready = self.wait();
            if !self.obey() {
                return;
            }
            // `ready` speaks of the lists as they were; commands only append or remove, so compare by identity.
            self.look_after_peers(&ready);
            self.serve_visitors();
            self.welcome();
        }
    }

    /// Blocks until something happens; gives the ids of watched peers from whom there is news.
    fn wait(&self) -> Vec<u64> {
        let mut fds = Vec::with_capacity(2 + self.visitors.len() + self.watched.len());
        fds.push(PollFd::new(&self.shared.wake, PollFlags::IN));
        // A listener that nobody is accepted from stays readable: looked at, it would keep this thread spinning.
        let undecided = self.undecided();
        let open = undecided < MAX_UNDECIDED && !self.resting;
        fds.push(PollFd::new(&self.listener, if open { PollFlags::IN } else { PollFlags::empty() }));
        fds.extend(self.watched.iter().map(|w| PollFd::new(&w.socket, PollFlags::IN)));
        fds.extend(self.visitors.iter().map(|v| PollFd::new(&v.socket, PollFlags::IN)));
        let timeout = match self.resting {
            true => Some(REST),
            false => (undecided > 0).then_some(Timespec { tv_sec: 1, tv_nsec: 0 }),
        };
        if let Err(error) = poll(&mut fds, timeout.as_ref())
            && error != rustix::io::Errno::INTR
        {
            tracing::warn!(target: "mscclpp::conn", %error, "waiting for peers");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut counter = [0; 8];
        let _ = rustix::io::read(&self.shared.wake, &mut counter);
        let peers = fds[2..].iter().zip(&self.watched);
        peers.filter(|(fd, _)| !fd.revents().is_empty()).map(|(_, watched)| watched.id).collect()
    }

    /// Carries out what other threads asked for; false to stop.
    fn obey(&mut self) -> bool {
        let commands = std::mem::take(&mut *self.shared.commands.lock());
        for command in commands {
            match command {
                Command::Watch { id, socket, monitor } => self.watched.push(Watched { id, socket, monitor }),
                Command::Unwatch { id } => self.watched.retain(|w| w.id != id),
                Command::CloseEndpoint { token } => self.say_goodbye(token),
                Command::Stop => return false,
            }
        }
        true
    }

    fn say_goodbye(&mut self, token: Token) {
        self.visitors.retain(|visitor| {
            let linked = matches!(visitor.state, Ok(t) if t == token);
            if linked {
                socket::answer(&visitor.socket, &[GOODBYE], None);
            }
            !linked
        });
    }

    fn look_after_peers(&mut self, ready: &[u64]) {
        let mut gone = Vec::new();
        self.watched.retain_mut(|watched| {
            if !ready.contains(&watched.id) {
                return true;
            }
            let mut byte = [0];
            let end = match socket::receive(&watched.socket, &mut byte) {
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return true,
                Ok((1, _)) if byte[0] == GOODBYE => None,
                Ok((0, _)) | Err(_) => Some("its process ended (its socket closed without a goodbye)"),
                Ok(_) => Some("it sent something that is not of this protocol"),
            };
            gone.push((watched.monitor.clone(), end));
            false
        });
        for (monitor, lost) in gone {
            match lost {
                Some(reason) => monitor.lost(reason),
                None => monitor.closed(),
            }
        }
    }

    fn serve_visitors(&mut self) {
        let Self { shared, visitors, .. } = self;
        visitors.retain_mut(|visitor| {
            let mut bytes = [0; Request::LEN + 1];
            match (socket::receive(&visitor.socket, &mut bytes), &visitor.state) {
                (Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR), Ok(_)) => true,
                (Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR), Err(since)) => {
                    since.elapsed() < VISITOR_TIMEOUT
                }
                // Only an undecided visitor has something to say.
                (Ok((len @ 1.., _)), Err(_)) => match shared.reply(&visitor.socket, &bytes[..len]) {
                    Some(token) => {
                        visitor.state = Ok(token);
                        true
                    }
                    None => false,
                },
                _ => false,
            }
        });
    }

    fn undecided(&self) -> usize {
        self.visitors.iter().filter(|v| v.state.is_err()).count()
    }

    fn welcome(&mut self) {
        let was_resting = std::mem::take(&mut self.resting);
        for _ in self.undecided()..MAX_UNDECIDED {
            let socket = match socket::accept(self.listener.as_fd()) {
                Ok(Some(socket)) => socket,
                Ok(None) => return,
                Err(error) => {
                    self.resting = true;
                    if !was_resting {
                        tracing::warn!(target: "mscclpp::conn", %error, "peers that want to connect have to wait");
                    }
                    return;
                }
            };
            match socket::user_fits(&socket) {
                Ok(()) => {
                    // What it sent along with connecting is read in the next round, which the data itself starts.
                    self.visitors.push(Visitor { socket, state: Err(Instant::now()) });
                }
                Err((theirs, _)) => {
                    tracing::warn!(target: "mscclpp::conn", user = theirs, "turned away a process of another user");
                    socket::answer(&socket, &Reply::encode(Err(Refusal::User)), None);
                }
            }
        }
    }
}

impl Shared {
    /// Answers a request; gives the endpoint's token if the visitor stays linked to it.
    fn reply(&self, socket: &OwnedFd, request: &[u8]) -> Option<Token> {
        let refuse = |refusal| {
            tracing::debug!(target: "mscclpp::conn", ?refusal, "refused a request");
            socket::answer(socket, &Reply::encode(Err(refusal)), None);
            None
        };
        match Request::decode(request) {
            Err(refusal) => refuse(refusal),
            Ok(Request::Link { token }) => {
                if !self.tables.lock().endpoints.contains(&token) {
                    return refuse(Refusal::Unknown);
                }
                socket::answer(socket, &Reply::encode(Ok(Reply { handle: Handle::None })), None);
                Some(token)
            }
            Ok(Request::Fetch { token, id }) => {
                let export = self.tables.lock().exports.get(&id).cloned();
                match export.filter(|export| export.is_open_to(&token)) {
                    Some(export) => {
                        let (handle, descriptor) = export.handle();
                        socket::answer(socket, &Reply::encode(Ok(Reply { handle })), descriptor);
                        None
                    }
                    None => refuse(Refusal::Unknown),
                }
            }
        }
    }
}
