//! The thread of a rank: it owns the rank's sockets, reports events to the [`Job`], and carries out its actions.
//!
//! Callers give it commands through a queue and an eventfd, and find what arrives in the rank's inbox. It never
//! blocks except in `EventLoop::wait_until`, so no peer and no stranger can hold it up.

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use mscclpp_net::event_loop::{EventLoop, LISTENER, Ready};
use mscclpp_net::key::Nonce;
use mscclpp_net::socket::{canonical, is_connected, read_some};
use mscclpp_net::{Report, SystemCall, SystemError, random};

use crate::job::{Action, Command, ConnectionId, Job};
use crate::tcp::handle::ReactorHandle;
use crate::tcp::listening::{self, Places};
use crate::tcp::socket::{self, Listener};
use crate::{Error, LOG};

/// The most bytes that are taken from a connection at a time.
const SCRATCH: usize = 16 * 1024;
/// The most reads of a connection before others have their turn. The event loop reports the rest again.
const READS: usize = 8;

struct Socket {
    stream: TcpStream,
    /// Whether the connection is not known to be established yet.
    connecting: bool,
    /// Whether the event loop was asked to report when the socket can be written.
    awaits_writable: bool,
}

/// The listener of a rank, and when and how it accepts connections.
#[derive(Default)]
pub(super) struct Acceptor {
    pub(super) listener: Option<Arc<Listener>>,
    /// The time at which to go on accepting. It is kept because the listener is reported once for each connection.
    pub(super) resume_at: Option<Instant>,
    /// A spare descriptor, at rank 0 while the job forms, with which to turn connections away when no other is left.
    pub(super) spare: Option<UnixDatagram>,
}

pub(crate) struct Reactor {
    rank: usize,
    pub(super) job: Job,
    pub(super) handle: Arc<ReactorHandle>,
    pub(super) events: EventLoop<Command>,
    pub(super) acceptor: Acceptor,
    places: Places,
    sockets: HashMap<ConnectionId, Socket>,
    scratch: Vec<u8>,
}

impl Reactor {
    pub(crate) fn new(
        rank: usize,
        job: Job,
        handle: Arc<ReactorHandle>,
        listener: Option<Arc<Listener>>,
        places: Places,
    ) -> Result<Self, SystemError> {
        let events = EventLoop::new(Arc::clone(handle.commands()))?;
        let mut reactor = Self {
            rank,
            job,
            handle,
            events,
            acceptor: Acceptor::default(),
            places,
            sockets: HashMap::new(),
            scratch: vec![0; SCRATCH],
        };
        if let Some(listener) = listener {
            reactor.start_accepting(listener)?;
        }
        Ok(reactor)
    }

    /// Runs until the bootstrap is dropped.
    pub(crate) fn run(mut self) {
        self.act();
        loop {
            self.take_commands();
            let now = Instant::now();
            self.job.on_time(now);
            self.accept_again(now);
            self.act();
            if self.job.is_finished(now) {
                return;
            }
            let wake_at = self.job.wake_at().into_iter().chain(self.acceptor.resume_at).min();
            match self.events.wait_until(wake_at) {
                Ok(ready) => ready.into_iter().for_each(|ready| self.on_ready(ready)),
                Err(error) => {
                    // Without its event loop the rank can do nothing more. The others lose it when its sockets close.
                    self.fail(&error.into());
                    return;
                }
            }
        }
    }

    fn take_commands(&mut self) {
        let handle = Arc::clone(&self.handle);
        for command in handle.commands().take() {
            if let Command::Send { stream, written: Some(sending), .. } = &command {
                handle.inbox.begin_send(stream.peer, sending);
            }
            self.job.on_command(Instant::now(), command);
            self.act();
        }
    }

    pub(super) fn fail(&mut self, error: &Error) {
        self.job.on_command(Instant::now(), Command::Fail(error.clone()));
        self.act();
    }

    /// Returns random bytes to be used once. Without them the job fails, because no proof would be worth anything.
    pub(super) fn nonce(&mut self) -> Option<Nonce> {
        random().map_err(|error| self.fail(&error.into())).ok()
    }

    fn on_ready(&mut self, ready: Ready) {
        match ready.token {
            LISTENER => self.accept_waiting(),
            id => {
                if ready.writable {
                    self.on_writable(id);
                }
                if ready.readable {
                    self.read(id);
                }
            }
        }
        self.act();
    }

    // ---- Actions of the job ----------------------------------------------------------------------------------------

    pub(super) fn act(&mut self) {
        while let Some(action) = self.job.next_action() {
            match action {
                Action::Dial { id, address } => self.dial(id, address),
                Action::Write { id } => self.write(id),
                Action::FinishWriting { id } => {
                    if let Some(socket) = self.sockets.get(&id) {
                        // This fails if the other side is gone already, which reading shows.
                        let _ = socket.stream.shutdown(Shutdown::Write);
                    }
                }
                Action::Close { id } => self.drop_socket(id),
                Action::Listen { local } => self.listen(local),
                Action::StopListening => self.stop_accepting(),
                Action::Formed(table) => {
                    // All ranks have come, so other connections may be left to wait.
                    self.acceptor.spare = None;
                    self.handle.set_formed(table);
                }
                Action::Deliver { stream, bytes } => self.handle.inbox.deliver(stream, bytes),
                Action::Sent(sending) => {
                    self.handle.inbox.update(|| sending.written.store(true, Ordering::Release));
                }
                Action::Gone { peer, error } => self.handle.inbox.peer_gone(peer, error),
                Action::Failed(error) => {
                    self.handle.inbox.fail(&error);
                }
            }
        }
    }

    fn dial(&mut self, id: ConnectionId, address: SocketAddr) {
        let begun = socket::begin_connect(address)
            .and_then(|stream| self.watch(id, stream, true).map_err(|error| error.source));
        if let Err(error) = begun {
            self.job.on_dial_failed(Instant::now(), id, (&error).into());
        }
    }

    /// Adds a socket.
    pub(super) fn watch(
        &mut self,
        id: ConnectionId,
        stream: TcpStream,
        connecting: bool,
    ) -> Result<(), SystemError> {
        self.events.watch(&stream, id, connecting).inspect_err(|error| {
            let error = Report(error).to_string();
            tracing::warn!(target: LOG, rank = self.rank, error, "cannot watch a connection");
        })?;
        self.sockets.insert(id, Socket { stream, connecting, awaits_writable: connecting });
        Ok(())
    }

    fn drop_socket(&mut self, id: ConnectionId) {
        if let Some(socket) = self.sockets.remove(&id) {
            self.events.remove(&socket.stream);
        }
    }

    /// Writes the pending bytes of a connection, as far as the system takes them.
    fn write(&mut self, id: ConnectionId) {
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        let failed = loop {
            let pending = self.job.pending(id);
            if pending.is_empty() {
                break None;
            }
            match socket.stream.write(pending) {
                Ok(0) => break Some(io::ErrorKind::WriteZero.into()),
                Ok(n) => self.job.on_written(Instant::now(), id, n),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break None,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Some(error),
            }
        };
        if let Some(error) = failed {
            // Bytes that the other side sent before may still wait to be read, and may give the reason.
            self.read(id);
            self.job.on_end(Instant::now(), id, &format!("the connection broke: {error}"));
            return;
        }
        let blocked = !self.job.pending(id).is_empty();
        if std::mem::replace(&mut socket.awaits_writable, blocked) != blocked {
            let modified = self.events.modify(&socket.stream, id, blocked);
            if let Err(error) = modified {
                self.job.on_end(Instant::now(), id, &Report(&error).to_string());
            }
        }
    }

    fn listen(&mut self, local: IpAddr) {
        let listening = listening::beside(local, &self.places).during("listening for other ranks");
        let at = listening.and_then(|(listener, addresses)| {
            let port = listener.local_addr().during("listening for other ranks")?.port();
            self.start_accepting(Arc::new(listener))?;
            Ok((port, addresses))
        });
        self.job.on_listening(Instant::now(), at.map_err(Error::from));
    }

    // ---- Events of sockets -----------------------------------------------------------------------------------------

    fn on_writable(&mut self, id: ConnectionId) {
        match self.sockets.get(&id) {
            Some(socket) if socket.connecting => self.connected(id),
            _ => self.write(id),
        }
    }

    /// Handles a connection that this rank opened and that is established, or has failed.
    fn connected(&mut self, id: ConnectionId) {
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        let local = match is_connected(&socket.stream) {
            Ok(false) => return,
            Ok(true) => socket.stream.local_addr(),
            Err(error) => Err(error),
        };
        match local {
            Ok(local) => {
                socket.connecting = false;
                let Some(nonce) = self.nonce() else { return };
                self.job.on_connected(Instant::now(), id, canonical(local), nonce);
                // The event loop will not report again that it can be written.
                self.write(id);
            }
            Err(error) => self.job.on_dial_failed(Instant::now(), id, (&error).into()),
        }
    }

    fn read(&mut self, id: ConnectionId) {
        for _ in 0..READS {
            let Some(socket) = self.sockets.get_mut(&id).filter(|socket| !socket.connecting) else { return };
            let ended = match read_some(&socket.stream, &mut self.scratch) {
                Ok(None) => return,
                Ok(Some(n)) => {
                    self.job.on_bytes(Instant::now(), id, &self.scratch[..n]);
                    if n < SCRATCH || !self.job.is_open(id) {
                        return;
                    }
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    "it closed the connection".to_owned()
                }
                Err(error) => format!("the connection broke: {error}"),
            };
            return self.job.on_end(Instant::now(), id, &ended);
        }
    }
}

#[cfg(test)]
mod tests;
