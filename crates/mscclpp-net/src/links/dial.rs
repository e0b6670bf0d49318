//! Connects to a peer: tries its addresses until one leads to it.

use std::{
    io::{self, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use crate::{
    dial::Attempt,
    frame::FrameReader,
    handshake::{Frame, Initiator, Session},
    key::{Key, Nonce},
    random,
};

use super::{
    Protocol,
    error::{Error, Result},
    handshake::{self, Refusal, Request},
    race::{Lost, Unreached, race},
};

/// The limit for all attempts together.
const LIMIT: Duration = Duration::from_secs(10);

/// The handshake on one connection. It shows whether the other end is the peer.
pub(super) struct Dialling<'a> {
    protocol: Protocol,
    key: &'a Key,
    request: &'a Request,
    nonce: Nonce,
    reader: FrameReader,
    /// The initiator, once the challenge has been answered.
    initiator: Option<Initiator>,
}

impl Dialling<'_> {
    /// Advances the handshake as far as it can without waiting. Returns the session once the handshake is complete.
    pub(super) fn advance(&mut self, mut stream: &TcpStream) -> Result<Option<Session>, Lost> {
        if self.initiator.is_none() {
            let Some(challenge) = self.read(stream)? else { return Ok(None) };
            let hello = self.request.hello(&self.protocol, self.nonce);
            let (initiator, hello) = Initiator::answer(self.protocol.name, self.key, &hello, &challenge)
                .map_err(|failure| Lost::Refused(failure.into()))?;
            // The hello fits the buffer of a new socket.
            if stream.write(&hello)? != hello.len() {
                return Err(io::Error::from(io::ErrorKind::WriteZero).into());
            }
            self.initiator = Some(initiator);
        }
        let Some(answer) = self.read(stream)? else { return Ok(None) };
        let initiator = self.initiator.take().ok_or(Lost::Refused(Refusal::Foreign))?;
        handshake::conclude(self.protocol.version, initiator, &answer).map(Some).map_err(Lost::Refused)
    }

    fn read(&mut self, stream: &TcpStream) -> Result<Option<Frame>, Lost> {
        self.reader.read(stream).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => Lost::Refused(Refusal::Foreign),
            _ => error.into(),
        })
    }
}

/// Connects to the process that has `key` at one of `candidates`, which are tried in turn and side by side. Also
/// returns the address that was reached. Blocks for at most about 10 seconds.
pub(super) fn dial(
    protocol: Protocol,
    candidates: &[SocketAddr],
    key: &Key,
    request: &Request,
) -> Result<(TcpStream, Session, SocketAddr)> {
    let begin = || {
        let reader = handshake::reader();
        Ok(Dialling { protocol, key, request, nonce: random()?, reader, initiator: None })
    };
    race(candidates, LIMIT, begin)?.map_err(|unreached| verdict(protocol, unreached))
}

/// Returns the error that sums up how each address failed.
fn verdict(protocol: Protocol, Unreached { after, failed, silent }: Unreached) -> Error {
    let refused = |how: &Lost| matches!(how, Lost::Io(e) if e.kind() == io::ErrorKind::ConnectionRefused);
    // Only the peer itself can prove that it has no such link, or that it speaks another version.
    let proved = |wanted: fn(&Refusal) -> bool| {
        failed.iter().find(|(_, how)| matches!(how, Lost::Refused(refusal) if wanted(refusal)))
    };
    if let Some((address, _)) = proved(|refusal| matches!(refusal, Refusal::NoLink)) {
        return Error::Closed { address: *address };
    }
    if let Some((_, Lost::Refused(Refusal::Version { theirs, ours }))) =
        proved(|refusal| matches!(refusal, Refusal::Version { .. }))
    {
        return Error::Version { protocol: protocol.title, theirs: *theirs, ours: *ours };
    }
    // The other answers are not proved: a stranger at one of the addresses can give them, while the peer is at
    // another. So the endpoint counts as closed only if everybody who answered said so.
    let unknown = |how: &Lost| matches!(how, Lost::Refused(Refusal::Unknown));
    let mut answered = failed.iter().filter(|(_, how)| !refused(how));
    if let Some((address, how)) = answered.next()
        && silent.is_empty()
        && unknown(how)
        && answered.all(|(_, how)| unknown(how))
    {
        return Error::Closed { address: *address };
    }
    if silent.is_empty() && !failed.is_empty() && failed.iter().all(|(_, how)| refused(how)) {
        return Error::Gone { addresses: failed.into_iter().map(|(address, _)| address).collect() };
    }
    let outcome = |how: Lost| match how {
        Lost::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            "it ended the connection without an answer".to_owned()
        }
        Lost::Io(error) => error.to_string(),
        Lost::Refused(refusal) => refusal.to_string(),
    };
    let failed = failed.into_iter().map(|(address, how)| Attempt { address, outcome: outcome(how) });
    let silent = silent.into_iter().map(|address| Attempt { address, outcome: "no answer".to_owned() });
    Error::Unreachable { after, attempts: failed.chain(silent).collect() }
}

#[cfg(test)]
pub(super) mod tests {
    use mscclpp_test_support::listen;

    use super::*;
    use crate::{
        SystemError,
        links::{handshake::Purpose, tests::PROTOCOL},
    };

    /// Returns the address of a process that answers everybody with something else than a handshake.
    pub(in crate::links) fn stranger() -> SocketAddr {
        let (listener, address) = listen();
        std::thread::spawn(move || {
            let mut streams = Vec::new();
            while let Ok((mut stream, _)) = listener.accept() {
                let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
                streams.push(stream);
            }
        });
        address
    }

    #[test]
    fn how_each_address_failed_is_told() {
        let ((_silent, silent), (_, closed), stranger) = (listen(), listen(), stranger());
        let limit = Duration::from_secs(1);
        let key = Key::from_bytes([1; 32]);
        let request = Request { endpoint: [2; 16], from: [3; 16], link: 4, purpose: Purpose::Link };
        let (key, request, protocol, nonce) = (&key, &request, PROTOCOL, [5; 32]);
        let begin =
            || Ok(Dialling { protocol, key, request, nonce, reader: handshake::reader(), initiator: None });
        let unreached = race(&[closed, silent, stranger], limit, begin).unwrap().map(drop).unwrap_err();
        assert_eq!(unreached.silent, [silent]);
        assert!(unreached.after >= limit);
        let [(first, Lost::Io(error)), (second, Lost::Refused(Refusal::Foreign))] = &unreached.failed[..]
        else {
            panic!("{unreached:?}")
        };
        assert_eq!((*first, error.kind()), (closed, io::ErrorKind::ConnectionRefused));
        assert_eq!(*second, stranger);
    }

    #[test]
    fn a_handshake_that_cannot_begin_ends_it() {
        let source = || io::Error::from(io::ErrorKind::Unsupported);
        let begin = || Err(SystemError { operation: "beginning", source: source() });
        let outcome = race(&[stranger()], LIMIT, begin).map(drop);
        assert_eq!(outcome.unwrap_err().operation, "beginning");
    }

    #[test]
    fn what_nobody_proves_counts_only_where_the_peer_can_be_nowhere_else() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let sum_up = |failed: Vec<Lost>| {
            let failed = (1..).map(at).zip(failed).collect();
            verdict(PROTOCOL, Unreached { after: LIMIT, failed, silent: Vec::new() })
        };
        let nobody = || Lost::Io(io::ErrorKind::ConnectionRefused.into());
        let unreachable = || Lost::Io(io::ErrorKind::HostUnreachable.into());
        let answer = Lost::Refused;
        let version = Refusal::Version { theirs: 7, ours: 1 };
        assert!(matches!(
            sum_up(vec![nobody(), answer(Refusal::Unknown), answer(Refusal::Unknown)]),
            Error::Closed { .. }
        ));
        assert!(matches!(sum_up(vec![answer(version), nobody()]), Error::Version { theirs: 7, .. }));
        assert!(matches!(sum_up(vec![answer(version), answer(Refusal::NoLink)]), Error::Closed { .. }));
        assert!(matches!(sum_up(vec![nobody(), nobody()]), Error::Gone { .. }));
        for doubtful in [Refusal::Unknown, Refusal::Key, Refusal::Foreign] {
            assert!(matches!(sum_up(vec![unreachable(), answer(doubtful)]), Error::Unreachable { .. }));
        }
        let doubtful = vec![answer(Refusal::Unknown), answer(Refusal::Foreign)];
        assert!(matches!(sum_up(doubtful), Error::Unreachable { .. }));
        for elsewhere in [unreachable(), answer(Refusal::Unknown)] {
            let proved = sum_up(vec![elsewhere, answer(version)]);
            assert!(matches!(proved, Error::Version { theirs: 7, .. }), "{proved}");
        }
    }
}
