//! Accepting connections, also when the process has no descriptor left.

use std::io::{self, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mscclpp_net::SystemError;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::tcp::reactor::Reactor;
use crate::tcp::socket::{self, Listener};

/// The pause in accepting when the process has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The most connections that are accepted at a time, so that a flood of strangers leaves time for members.
const AT_A_TIME: usize = 64;

impl Reactor {
    pub(super) fn start_accepting(&mut self, listener: Arc<Listener>) -> Result<(), SystemError> {
        self.events.add_listener(&**listener)?;
        self.acceptor.listener = Some(listener);
        Ok(())
    }

    pub(super) fn stop_accepting(&mut self) {
        if let Some(listener) = self.acceptor.listener.take() {
            self.events.remove(&**listener);
        }
    }

    /// Accepts connections that wait, unless accepting pauses.
    pub(super) fn accept_waiting(&mut self) {
        if self.acceptor.resume_at.is_none() {
            self.accept_all();
        }
    }

    /// Goes on accepting after a pause.
    pub(super) fn accept_again(&mut self, now: Instant) {
        if self.acceptor.resume_at.is_some_and(|at| at <= now) {
            self.accept_all();
        }
    }

    pub(super) fn accept_all(&mut self) {
        self.acceptor.resume_at = None;
        self.keep_spare();
        let mut pause = Duration::ZERO;
        for _ in 0..AT_A_TIME {
            let Some(listener) = &self.acceptor.listener else { return };
            let accepted = match socket::accept(listener) {
                // The system needs the descriptor even before it checks whether anybody waits.
                Err(error) if is_full(&error) && self.acceptor.spare.take().is_some() => {
                    let accepted = socket::accept(listener);
                    if let Ok(Some((stream, _))) = &accepted
                        && !self.make_room()
                    {
                        self.turn_away(stream);
                        pause = ACCEPT_PAUSE;
                        drop(accepted);
                        self.keep_spare();
                        continue;
                    }
                    self.keep_spare();
                    accepted
                }
                accepted => accepted,
            };
            let now = Instant::now();
            match accepted {
                Ok(None) => return,
                Ok(Some((stream, from))) => {
                    let Some(nonce) = self.nonce() else { return };
                    let id = self.job.on_accepted(now, from, nonce);
                    if let Err(error) = self.watch(id, stream, false) {
                        self.job.on_end(now, id, &error.to_string());
                    }
                }
                Err(error) => {
                    self.job.on_accept_failed(now, &error);
                    self.acceptor.resume_at = Some(now + ACCEPT_PAUSE);
                    return;
                }
            }
            self.act();
        }
        self.acceptor.resume_at = Some(Instant::now() + pause);
    }

    /// Keeps a spare descriptor at rank 0 while the job forms, because all ranks must come here, and must be told if
    /// they are not admitted.
    fn keep_spare(&mut self) {
        if self.acceptor.spare.is_none() && self.job.awaits_all() {
            self.acceptor.spare = UnixDatagram::unbound().ok();
        }
    }

    /// Closes a connection that is slow to prove itself. Returns whether there was one.
    fn make_room(&mut self) -> bool {
        let evicted = self.job.evict_slow(Instant::now());
        self.act();
        evicted
    }

    /// Tells a process that has connected that there is no room.
    fn turn_away(&mut self, mut stream: &TcpStream) {
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.map_or(u32::MAX, |limit| u32::try_from(limit).unwrap_or(u32::MAX));
        let frame = self.job.on_full(Instant::now(), limit);
        // The frame always fits. The write fails only if the process has gone again.
        let _ = stream.write(&frame);
    }
}

/// Returns whether this process may open no further descriptor.
fn is_full(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::MFILE.raw_os_error())
}
