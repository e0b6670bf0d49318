//! Connecting to a peer: all its addresses, until one leads to it.

use std::{
    collections::VecDeque,
    io,
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    error::{Error, Result, SystemCall},
    hub::random,
    protocol::{
        handshake::{ANSWER, CHALLENGE, Initiator, Refusal, Session, Wish},
        key::Key,
    },
    socket::{self, Manner, Piece},
};

/// How long all of it may take.
const LIMIT: Duration = Duration::from_secs(10);
/// How long an address has the field to itself, before the next one is tried beside it.
const HEAD_START: Duration = Duration::from_millis(250);

/// After so long without an answer an address is tried once more, beside what has been begun. Where the first packets of
/// a connection are lost, the system takes the time until their repetition for the time that the way takes, and repeats
/// the next one after three times that; a new connection begins anew.
const AGAIN: Duration = Duration::from_secs(3);

/// An address that is being tried.
struct Attempt {
    address: SocketAddr,
    stream: TcpStream,
    state: State,
}

enum State {
    Connecting,
    /// So much of the challenge is there.
    Challenged([u8; CHALLENGE], usize),
    /// So much of the answer is there.
    Answered(Option<Initiator>, [u8; ANSWER], usize),
}

/// How an attempt failed.
enum Failed {
    Io(io::Error),
    Refused(Refusal),
    /// Its end came before its answer.
    Ended,
}

/// Connects to whoever has `key` at one of `candidates`, in turn and side by side, and gives the address too. Blocks,
/// for at most about 10 s.
pub(crate) fn dial(
    candidates: &[SocketAddr],
    key: &Key,
    wish: &Wish,
) -> Result<(TcpStream, Session, SocketAddr)> {
    let began = Instant::now();
    let mut untried: VecDeque<_> = candidates.iter().copied().collect();
    let mut again_at = began + AGAIN;
    let mut active: Vec<Attempt> = Vec::new();
    let mut failed: Vec<(SocketAddr, Failed)> = Vec::new();
    let mut next_at = began;
    loop {
        let now = Instant::now();
        if now >= again_at && untried.is_empty() {
            again_at = now + AGAIN;
            let silent = |address: &&SocketAddr| active.iter().any(|attempt| attempt.address == **address);
            untried.extend(candidates.iter().filter(silent));
        }
        if (active.is_empty() || now >= next_at)
            && let Some(address) = untried.pop_front()
        {
            next_at = now + HEAD_START;
            match socket::begin_connect(address) {
                Ok(stream) => active.push(Attempt { address, stream, state: State::Connecting }),
                Err(error) => failed.push((address, Failed::Io(error))),
            }
            continue;
        }
        if active.is_empty() || now >= began + LIMIT {
            return Err(verdict(began.elapsed(), failed, &active));
        }
        let next = if untried.is_empty() { again_at } else { next_at };
        wait(&active, next.min(began + LIMIT).saturating_duration_since(now), !untried.is_empty());
        let mut index = 0;
        while let Some(attempt) = active.get_mut(index) {
            match attempt.go_on(key, wish) {
                Ok(None) => index += 1,
                Ok(Some(session)) => {
                    let Attempt { address, stream, .. } = active.swap_remove(index);
                    return Ok((stream, session, address));
                }
                Err(GoOn::Failed(how)) => failed.push((active.swap_remove(index).address, how)),
                Err(GoOn::Here(error)) => return Err(error),
            }
        }
    }
}

enum GoOn {
    Failed(Failed),
    /// Something failed here, not there.
    Here(Error),
}

impl From<io::Error> for GoOn {
    fn from(error: io::Error) -> Self {
        Self::Failed(Failed::Io(error))
    }
}

impl From<Refusal> for GoOn {
    fn from(refusal: Refusal) -> Self {
        Self::Failed(Failed::Refused(refusal))
    }
}

impl Attempt {
    /// Does what can be done without waiting.
    fn go_on(&mut self, key: &Key, wish: &Wish) -> Result<Option<Session>, GoOn> {
        loop {
            match &mut self.state {
                State::Connecting => {
                    if let Some(error) = self.stream.take_error()? {
                        return Err(error.into());
                    }
                    match self.stream.peer_addr() {
                        // A free port of this host can be given to the socket that connects to it, which then meets itself.
                        Ok(peer) if self.stream.local_addr()? == peer => {
                            return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into());
                        }
                        Ok(_) => self.state = State::Challenged([0; CHALLENGE], 0),
                        Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(None),
                        Err(error) => return Err(error.into()),
                    }
                }
                State::Challenged(challenge, heard) => {
                    if !hear(&self.stream, challenge, heard)? {
                        return Ok(None);
                    }
                    let nonce = random().map_err(GoOn::Here)?;
                    let (initiator, hello) = Initiator::answer(key, wish, nonce, challenge)?;
                    // SAFETY: a vector of this thread's. It fits the buffer of a new socket.
                    let sent = unsafe { socket::send(&self.stream, &[Piece::of(&hello)], Manner::AtOnce)? };
                    if sent != hello.len() {
                        return Err(io::Error::from(io::ErrorKind::WriteZero).into());
                    }
                    self.state = State::Answered(Some(initiator), [0; ANSWER], 0);
                }
                State::Answered(initiator, answer, heard) => {
                    if !hear(&self.stream, answer, heard)? {
                        return Ok(None);
                    }
                    let Some(initiator) = initiator.take() else { return Err(Refusal::Foreign.into()) };
                    return Ok(Some(initiator.conclude(answer)?));
                }
            }
        }
    }
}

/// Hears more; whether all of it is there.
fn hear(stream: &TcpStream, bytes: &mut [u8], heard: &mut usize) -> Result<bool, GoOn> {
    while *heard < bytes.len() {
        // SAFETY: the rest of an array of this thread's.
        match unsafe { socket::receive(stream, &[Piece::of_mut(&mut bytes[*heard..])], false) } {
            Ok(0) => return Err(GoOn::Failed(Failed::Ended)),
            Ok(count) => *heard += count,
            Err(error) if socket::is_not_now(&error) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

fn wait(active: &[Attempt], limit: Duration, more: bool) {
    let mut fds: Vec<_> = active
        .iter()
        .map(|attempt| match attempt.state {
            State::Connecting => PollFd::new(&attempt.stream, PollFlags::OUT),
            _ => PollFd::new(&attempt.stream, PollFlags::IN),
        })
        .collect();
    // Rounded up to what the system counts in, or a deadline just ahead would be waited for in a busy loop.
    let limit = if more { limit } else { limit.max(Duration::from_millis(50)) } + Duration::from_millis(1);
    // However it ends, what follows looks at everything.
    let _ = poll(&mut fds, Timespec::try_from(limit).ok().as_ref());
}

/// What to tell the caller, of how each address failed.
fn verdict(after: Duration, failed: Vec<(SocketAddr, Failed)>, active: &[Attempt]) -> Error {
    let refused = |how: &Failed| matches!(how, Failed::Io(e) if e.kind() == io::ErrorKind::ConnectionRefused);
    // Only the peer itself can prove that it belongs to it and has no such link.
    if let Some((address, _)) = failed.iter().find(|(_, how)| matches!(how, Failed::Refused(Refusal::NoLink)))
    {
        return Error::Closed { address: *address };
    }
    // These nobody proves: whoever listens at one of the addresses can say so, while the peer is at another. So they count
    // only if they were said wherever somebody is.
    let said = |wanted: fn(&Refusal) -> bool| {
        let mut others = failed.iter().filter(|(_, how)| !refused(how)).peekable();
        let first = others.peek().copied().filter(|_| active.is_empty());
        first.filter(|_| others.all(|(_, how)| matches!(how, Failed::Refused(refusal) if wanted(refusal))))
    };
    if let Some((_, Failed::Refused(Refusal::Version { theirs }))) =
        said(|refusal| matches!(refusal, Refusal::Version { .. }))
    {
        return Error::Version { theirs: *theirs };
    }
    if let Some((address, _)) = said(|refusal| matches!(refusal, Refusal::Unknown)) {
        return Error::Closed { address: *address };
    }
    if active.is_empty() && !failed.is_empty() && failed.iter().all(|(_, how)| refused(how)) {
        return Error::Gone { addresses: failed.into_iter().map(|(address, _)| address).collect() };
    }
    let mut attempts: Vec<_> = failed
        .into_iter()
        .map(|(address, how)| {
            let outcome = match how {
                Failed::Io(error) => error.to_string(),
                Failed::Refused(refusal) => refusal.to_string(),
                Failed::Ended => "it ended the connection without an answer".to_owned(),
            };
            (address, outcome)
        })
        .collect();
    for Attempt { address, .. } in active {
        let silent = (*address, "no answer".to_owned());
        if !attempts.contains(&silent) {
            attempts.push(silent);
        }
    }
    Error::Unreachable { after, attempts }
}

/// As [`dial`], for a connection that carries data.
pub(crate) fn dial_queue(candidate: SocketAddr, key: &Key, wish: &Wish) -> Result<(TcpStream, Session)> {
    let (stream, session, _) = dial(&[candidate], key, wish)?;
    socket::tune_queue(&stream).during("setting up a connection")?;
    Ok((stream, session))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_proves_counts_only_where_the_peer_can_be_nowhere_else() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let told = |failed: Vec<Failed>| verdict(LIMIT, (1..).map(at).zip(failed).collect(), &[]);
        let nobody = || Failed::Io(io::ErrorKind::ConnectionRefused.into());
        let unreachable = || Failed::Io(io::ErrorKind::HostUnreachable.into());
        let said = Failed::Refused;
        let version = Refusal::Version { theirs: 7 };
        assert!(matches!(
            told(vec![nobody(), said(Refusal::Unknown), said(Refusal::Unknown)]),
            Error::Closed { .. }
        ));
        assert!(matches!(told(vec![said(version), nobody()]), Error::Version { theirs: 7 }));
        assert!(matches!(told(vec![said(version), said(Refusal::NoLink)]), Error::Closed { .. }));
        assert!(matches!(told(vec![nobody(), nobody()]), Error::Gone { .. }));
        for doubtful in [said(Refusal::Unknown), said(version)] {
            assert!(matches!(told(vec![unreachable(), doubtful]), Error::Unreachable { .. }));
        }
        assert!(matches!(told(vec![said(Refusal::Unknown), said(version)]), Error::Unreachable { .. }));
    }

    #[test]
    fn a_socket_that_meets_itself_is_refused() {
        let here = SocketAddr::from(([127, 0, 0, 1], 0));
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&here.into()).unwrap();
        let itself = socket.local_addr().unwrap();
        socket.connect(&itself).unwrap();
        socket.set_nonblocking(true).unwrap();
        let address = itself.as_socket().unwrap();
        let mut attempt = Attempt { address, stream: socket.into(), state: State::Connecting };
        let wish = Wish {
            endpoint: [0; 16],
            from: [0; 16],
            link: 0,
            purpose: crate::protocol::handshake::Purpose::Link,
        };
        let Err(GoOn::Failed(Failed::Io(error))) = attempt.go_on(&Key::from_bytes([0; 32]), &wish) else {
            panic!("it went on")
        };
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
