//! TCP sockets as this repository wants them: they do not block, are closed on exec, and notice when the other host is
//! gone.

use std::{
    io::{self, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};

/// Connections that may wait to be accepted; the system has a limit of its own.
const BACKLOG: i32 = 4096;

/// How a connection notices that the other host is gone.
///
/// Probes on an idle connection, and the data on a busy one, are acknowledged by the other system, not by its process:
/// a process that is stopped is not taken for a host that has vanished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Liveness {
    /// How long nothing must have come before the first probe is sent.
    pub idle: Duration,
    /// The time between two probes. After three without an answer the connection has ended.
    pub interval: Duration,
    /// The connection has ended when what was sent is not acknowledged for so long. Nothing if the other side may leave
    /// its receive buffer full for longer.
    pub unacknowledged: Option<Duration>,
}

impl Liveness {
    /// A host that acknowledges nothing for 3.5 s is gone: well under the five seconds in which a loss must be known.
    /// For connections whose data always fits the other side's receive buffer.
    pub const PROMPT: Self = Self {
        idle: Duration::from_secs(1),
        interval: Duration::from_secs(1),
        unacknowledged: Some(Duration::from_millis(3500)),
    };

    /// Has a connection notice.
    ///
    /// # Errors
    /// The system's.
    pub fn apply(&self, stream: &TcpStream) -> io::Result<()> {
        let socket = SockRef::from(stream);
        let probes = TcpKeepalive::new().with_time(self.idle).with_interval(self.interval).with_retries(3);
        socket.set_tcp_keepalive(&probes)?;
        match self.unacknowledged {
            None => Ok(()),
            limit => socket.set_tcp_user_timeout(limit),
        }
    }
}

fn socket(address: SocketAddr, receive_buffer: Option<usize>) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    if let Some(bytes) = receive_buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    // With it a program can listen at a port that earlier connections still have in `TIME_WAIT`, on either side: a port
    // that users choose is often one of those the system gives to outgoing connections. On Linux it does not let two
    // sockets listen on one address.
    socket.set_reuse_address(true)?;
    Ok(socket)
}

/// Listens on an address. IPv6's unspecified address serves IPv4 too.
///
/// `receive_buffer` is that of the connections to come, in bytes; without one the system adapts it to the traffic.
///
/// # Errors
/// The system's.
pub fn listen(address: SocketAddr, receive_buffer: Option<usize>) -> io::Result<TcpListener> {
    let socket = socket(address, receive_buffer)?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Listens on a free port of all addresses: of both families, if `v6` and the system has both; else of IPv4.
///
/// # Errors
/// The system's.
pub fn listen_everywhere(v6: bool, receive_buffer: Option<usize>) -> io::Result<TcpListener> {
    let at = |ip: IpAddr| listen(SocketAddr::new(ip, 0), receive_buffer);
    match v6 {
        true => at(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| at(Ipv4Addr::UNSPECIFIED.into())),
        false => at(Ipv4Addr::UNSPECIFIED.into()),
    }
}

/// Begins to connect, without delay for small packets. The outcome is there when the socket becomes writable: see
/// [`is_connected`].
///
/// # Errors
/// The system's, if it says at once that this cannot work.
pub fn begin_connect(address: SocketAddr, receive_buffer: Option<usize>) -> io::Result<TcpStream> {
    let socket = socket(address, receive_buffer)?;
    socket.set_tcp_nodelay(true)?;
    match socket.connect(&SockAddr::from(address)) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
        Err(error) => return Err(error),
    }
    Ok(socket.into())
}

/// Whether a connection that was begun stands; `false` if that is not known yet.
///
/// The system gives to an outgoing connection a free port, which may be the very one of this machine that is called when
/// nobody listens there. Such a connection leads back to its own socket, and each end would wait for the other to speak.
/// It counts as refused.
///
/// # Errors
/// Why it failed.
pub fn is_connected(stream: &TcpStream) -> io::Result<bool> {
    if let Some(error) = stream.take_error()? {
        return Err(error);
    }
    match stream.peer_addr() {
        Ok(peer) if stream.local_addr()? == peer => Err(io::ErrorKind::ConnectionRefused.into()),
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}

/// Accepts a connection, which then does not block; none if none waits.
///
/// # Errors
/// The system has no descriptor or no memory for it; try again after a while.
pub fn accept(listener: &TcpListener) -> io::Result<Option<(TcpStream, SocketAddr)>> {
    loop {
        match listener.accept() {
            Ok((stream, from)) => {
                stream.set_nonblocking(true)?;
                return Ok(Some((stream, canonical(from))));
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return Ok(None),
                // Somebody who went again before being accepted.
                io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                _ => return Err(error),
            },
        }
    }
}

/// The address without the wrapping that IPv4 has on a socket for both families.
#[must_use]
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Whether a connection failed because nothing came from the other host any more, and not because that ended it.
#[must_use]
pub fn is_silence(error: &io::Error) -> bool {
    use io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
    matches!(error.kind(), TimedOut | HostUnreachable | NetworkUnreachable)
}

/// A message of `N` bytes, as they arrive on a connection that does not block.
#[derive(Debug, Clone)]
pub struct Incoming<const N: usize> {
    bytes: [u8; N],
    filled: usize,
}

impl<const N: usize> Default for Incoming<N> {
    fn default() -> Self {
        Self { bytes: [0; N], filled: 0 }
    }
}

impl<const N: usize> Incoming<N> {
    /// Takes what has arrived; the message once it is whole.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the connection ended before that, else the system's.
    pub fn read(&mut self, mut stream: impl Read) -> io::Result<Option<&[u8; N]>> {
        while self.filled < N {
            match stream.read(&mut self.bytes[self.filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(&self.bytes))
    }

    /// What has arrived.
    #[must_use]
    pub fn so_far(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_connection_to_oneself_is_refused() {
        let own = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        own.bind(&SockAddr::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))).unwrap();
        own.connect(&own.local_addr().unwrap()).unwrap();
        let error = is_connected(&own.into()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);

        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(is_connected(&other).unwrap());
    }

    #[test]
    fn a_message_is_there_when_all_of_it_is() {
        let listener = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), None).unwrap();
        let mut there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let here = loop {
            if let Some((stream, from)) = accept(&listener).unwrap() {
                assert_eq!(from, there.local_addr().unwrap());
                break stream;
            }
        };
        let mut incoming = Incoming::<4>::default();
        assert!(incoming.read(&here).unwrap().is_none());
        there.write_all(b"abc").unwrap();
        while incoming.so_far() != b"abc" {
            assert!(incoming.read(&here).unwrap().is_none());
        }
        there.write_all(b"de").unwrap();
        let message = loop {
            if let Some(message) = incoming.read(&here).unwrap() {
                break *message;
            }
        };
        assert_eq!(&message, b"abcd");

        drop(there);
        let mut rest = Incoming::<4>::default();
        let error = loop {
            if let Err(error) = rest.read(&here) {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(rest.so_far(), b"e");
    }
}
