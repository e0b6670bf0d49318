//! Tries all addresses side by side, until one leads to the peer.

use std::{
    collections::VecDeque,
    io,
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{SystemError, handshake::Session, socket};

use super::{dial::Dialling, handshake::Refusal};

/// How long an address is tried alone before the next one is tried as well.
const HEAD_START: Duration = Duration::from_millis(250);

/// After this time without an answer, a second attempt at the same address begins; the first one goes on. If the first
/// packets of a connection are lost, the system takes the time until it repeats them for the round-trip time, and waits
/// three times as long before the next repetition. A new connection starts with a fresh estimate.
const AGAIN: Duration = Duration::from_secs(3);

/// How an attempt failed.
#[derive(Debug)]
pub(super) enum Lost {
    /// The connection failed: with [`io::ErrorKind::UnexpectedEof`] if the other end closed it.
    Io(io::Error),
    /// A process answered, but the handshake failed.
    Refused(Refusal),
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// How the attempts at all addresses failed.
#[derive(Debug)]
pub(super) struct Unreached {
    /// The time for which the addresses were tried.
    pub(super) after: Duration,
    /// The attempts that ended, each with its address.
    pub(super) failed: Vec<(SocketAddr, Lost)>,
    /// The addresses that had given no answer when the time was up.
    pub(super) silent: Vec<SocketAddr>,
}

/// The result of [`race()`]: the connection that was found (it does not block), the session of its handshake and the
/// address that led to the peer; or how the attempts at all addresses failed.
pub(super) type Outcome = Result<(TcpStream, Session, SocketAddr), Unreached>;

struct Attempt<'a> {
    address: SocketAddr,
    stream: TcpStream,
    handshake: Dialling<'a>,
    connected: bool,
}

impl Attempt<'_> {
    fn advance(&mut self) -> Result<Option<Session>, Lost> {
        if !self.connected {
            self.connected = socket::is_connected(&self.stream)?;
        }
        if self.connected { self.handshake.advance(&self.stream) } else { Ok(None) }
    }
}

/// Connects to the process that completes the handshake at one of `candidates`. The addresses are tried in turn, and
/// side by side if they answer slowly. `begin` makes a handshake for each attempt. Blocks for at most about `limit`.
///
/// # Errors
/// If no handshake succeeded, the inner result says how each address failed. An error of `begin` ends all attempts
/// and becomes the outer error.
pub(super) fn race<'a>(
    candidates: &[SocketAddr],
    limit: Duration,
    mut begin: impl FnMut() -> Result<Dialling<'a>, SystemError>,
) -> Result<Outcome, SystemError> {
    let began = Instant::now();
    let mut untried: VecDeque<_> = candidates.iter().copied().collect();
    let mut again_at = began + AGAIN;
    let mut next_at = began;
    let mut active: Vec<Attempt<'a>> = Vec::new();
    let mut failed = Vec::new();
    loop {
        let now = Instant::now();
        if now >= again_at && untried.is_empty() {
            again_at = now + AGAIN;
            let is_active = |address: &&SocketAddr| active.iter().any(|a| a.address == **address);
            untried.extend(candidates.iter().filter(is_active));
        }
        if (active.is_empty() || now >= next_at)
            && let Some(address) = untried.pop_front()
        {
            next_at = now + HEAD_START;
            match socket::begin_connect(address, None) {
                Ok(stream) => {
                    active.push(Attempt { address, stream, handshake: begin()?, connected: false });
                }
                Err(error) => failed.push((address, Lost::Io(error))),
            }
            continue;
        }
        if active.is_empty() || now >= began + limit {
            let mut silent: Vec<_> = active.iter().map(|attempt| attempt.address).collect();
            silent.sort_unstable();
            silent.dedup();
            return Ok(Err(Unreached { after: began.elapsed(), failed, silent }));
        }
        let next = if untried.is_empty() { again_at } else { next_at };
        wait(&active, next.min(began + limit).saturating_duration_since(now));
        let mut index = 0;
        while let Some(attempt) = active.get_mut(index) {
            match attempt.advance() {
                Ok(None) => index += 1,
                Ok(Some(session)) => {
                    let Attempt { address, stream, .. } = active.swap_remove(index);
                    return Ok(Ok((stream, session, address)));
                }
                Err(how) => failed.push((active.swap_remove(index).address, how)),
            }
        }
    }
}

fn wait(active: &[Attempt<'_>], limit: Duration) {
    let mut fds: Vec<_> = active
        .iter()
        .map(|attempt| {
            let flags = if attempt.connected { PollFlags::IN } else { PollFlags::OUT };
            PollFd::new(&attempt.stream, flags)
        })
        .collect();
    // `poll` counts milliseconds, so the time is rounded up: rounded down, the last millisecond would be a busy loop.
    let limit = limit + Duration::from_millis(1);
    // The result does not matter, because the caller looks at every connection afterwards.
    let _ = poll(&mut fds, Timespec::try_from(limit).ok().as_ref());
}
