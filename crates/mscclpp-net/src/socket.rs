//! TCP sockets as this repository uses them: they do not block, are closed on exec, and notice when the other node is
//! gone.

use std::{
    io::{self, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};

/// The most connections that may wait to be accepted; the system has a limit of its own.
const BACKLOG: i32 = 4096;
/// The most attempts to listen at an address at which another socket begins to listen at the same time.
const ATTEMPTS: u32 = 10;

/// The times after which a connection notices that the other node is gone.
///
/// Probes on an idle connection, and the data on a busy one, are acknowledged by the other node's system, not by its
/// process. So a process that is stopped is not taken for a node that is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Liveness {
    /// How long a connection must be silent before the first probe is sent.
    pub idle: Duration,
    /// The time between two probes. After three without an answer the connection has ended.
    pub interval: Duration,
    /// The connection ends if sent data is not acknowledged for this long. `None` if the other side may leave its
    /// receive buffer full for longer.
    pub unacknowledged: Option<Duration>,
}

impl Liveness {
    /// The limits that take a node for gone if it acknowledges nothing for 3.5 seconds: well under the five seconds
    /// in which a loss must be noticed. They are for connections whose data always fits the other side's receive
    /// buffer.
    pub const PROMPT: Self = Self {
        idle: Duration::from_secs(1),
        interval: Duration::from_secs(1),
        unacknowledged: Some(Duration::from_millis(3500)),
    };

    /// Sets these limits on a connection.
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
    // With this option a program can listen at a port that earlier connections still have in `TIME_WAIT`, on either
    // side: a port that users choose is often one of those the system gives to outgoing connections. On Linux it does
    // not let two sockets listen on one address.
    socket.set_reuse_address(true)?;
    Ok(socket)
}

/// Listens on an address. The unspecified address of IPv6 serves IPv4 too.
///
/// `receive_buffer` is the receive buffer of accepted connections, in bytes; if none, the system adapts it to the
/// traffic.
pub fn listen(address: SocketAddr, receive_buffer: Option<usize>) -> io::Result<TcpListener> {
    let mut left = ATTEMPTS;
    loop {
        let socket = socket(address, receive_buffer)?;
        if address.is_ipv6() {
            socket.set_only_v6(!address.ip().is_unspecified())?;
        }
        socket.bind(&SockAddr::from(address))?;
        left -= 1;
        match socket.listen(BACKLOG) {
            Ok(()) => return Ok(socket.into()),
            // Linux may refuse both of two sockets that begin to listen on one address at the same time. If the other listens
            // now, this one cannot be bound again.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && left > 0 => {}
            Err(error) => return Err(error),
        }
    }
}

/// Listens on a free port of all addresses: of both families if `v6` is set and the system has both, otherwise of IPv4
/// alone.
pub fn listen_everywhere(v6: bool, receive_buffer: Option<usize>) -> io::Result<TcpListener> {
    let at = |ip: IpAddr| listen(SocketAddr::new(ip, 0), receive_buffer);
    match v6 {
        true => at(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| at(Ipv4Addr::UNSPECIFIED.into())),
        false => at(Ipv4Addr::UNSPECIFIED.into()),
    }
}

/// Begins to connect. Small packets are sent without delay. Once the socket becomes writable, [`is_connected`] tells
/// the outcome.
///
/// # Errors
/// If the system says at once that the connection cannot be made.
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

/// Returns whether a connection that was begun is established; `false` if that is not known yet.
///
/// The system gives an outgoing connection a free port. If nobody listens at the wanted port of this node, the system
/// may pick that very port. The socket is then connected to itself, and each end would wait for the other to speak.
/// Such a connection counts as refused.
///
/// # Errors
/// The reason why the connection failed.
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

/// Accepts a connection, and makes it not block. Returns `None` if none is waiting.
///
/// # Errors
/// If the system has no descriptor or no memory for it; try again after a while.
pub fn accept(listener: &TcpListener) -> io::Result<Option<(TcpStream, SocketAddr)>> {
    loop {
        match listener.accept() {
            Ok((stream, from)) => {
                stream.set_nonblocking(true)?;
                return Ok(Some((stream, canonical(from))));
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return Ok(None),
                // The process that connected went away before it was accepted.
                io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                _ => return Err(error),
            },
        }
    }
}

/// Turns an IPv4 address wrapped in IPv6, as a socket for both families has it, into plain IPv4.
#[must_use]
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Returns whether a connection failed because nothing came from the other node any more, rather than because that
/// node ended it.
#[must_use]
pub fn is_silence(error: &io::Error) -> bool {
    use io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
    matches!(error.kind(), TimedOut | HostUnreachable | NetworkUnreachable)
}

/// Reads some of the bytes that have arrived on a connection that does not block. Returns `None` if nothing has.
///
/// # Errors
/// [`io::ErrorKind::UnexpectedEof`] if the connection has ended; otherwise the system's error.
pub fn read_some(mut stream: impl Read, into: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match stream.read(into) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => return Ok(Some(count)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

/// A message of `N` bytes that arrives on a connection that does not block.
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
    /// Reads the bytes that have arrived. Returns the message once it is whole.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the connection ended too early; otherwise the system's error.
    pub fn read(&mut self, mut stream: impl Read) -> io::Result<Option<&[u8; N]>> {
        while self.filled < N {
            let Some(count) = read_some(&mut stream, &mut self.bytes[self.filled..])? else {
                return Ok(None);
            };
            self.filled += count;
        }
        Ok(Some(&self.bytes))
    }

    /// Returns the bytes that have arrived so far.
    #[must_use]
    pub fn so_far(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }
}
