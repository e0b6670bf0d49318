//! Sockets as this crate wants them: non-blocking, closed on exec, without delay, and noticing when the other host is gone.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};

/// A host that acknowledges nothing for so long is gone. Well under the five seconds in which a loss must be known.
const SILENCE: Duration = Duration::from_millis(3500);
/// Larger than the window of `protocol::outbox`, whatever the system's default is.
const RECEIVE_BUFFER: usize = 256 * 1024;
/// Connections that may wait to be accepted; the system has a limit of its own.
const BACKLOG: i32 = 4096;

fn socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    // With it a job can listen at a port that connections of earlier jobs still have in `TIME_WAIT`, on either side: a
    // port that users choose is often one of those the system gives to outgoing connections. On Linux it does not let
    // two sockets listen on one address.
    socket.set_reuse_address(true)?;
    Ok(socket)
}

/// Listens on an address.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket(address)?;
    if address.is_ipv6() {
        // The unspecified address serves IPv4 too.
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Listens on a free port of all addresses, of both families where the system has both.
pub(crate) fn listen_everywhere(v6: bool) -> io::Result<TcpListener> {
    if v6 && let Ok(listener) = listen(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0)) {
        return Ok(listener);
    }
    listen(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0))
}

/// Begins to connect. The outcome is there when the socket becomes writable; see [`TcpStream::take_error`].
pub(crate) fn begin_connect(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = socket(address)?;
    tune(&SockRef::from(&socket))?;
    match socket.connect(&SockAddr::from(address)) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
        Err(error) => return Err(error),
    }
    Ok(socket.into())
}

/// Whether a connection leads back to its own socket. The system makes such a one when nobody listens at an address of
/// this machine and the port it gives to the caller happens to be the one that is called; each end then waits for the
/// other to speak.
pub(crate) fn is_its_own_peer(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(local), Ok(peer)) if local == peer)
}

/// Accepts a connection, if one waits.
pub(crate) fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, from) = listener.accept()?;
    stream.set_nonblocking(true)?;
    tune(&SockRef::from(&stream))?;
    Ok((stream, canonical(from)))
}

/// The address without the wrapping that IPv4 has on a socket for both families.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn tune(socket: &SockRef<'_>) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    // Idle connections are probed; on those with data under way, the absence of acknowledgements counts. Both are answered
    // by the other system, not by its process, so that a stopped process is not taken for a vanished host.
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(1))
        .with_interval(Duration::from_secs(1))
        .with_retries(3);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(SILENCE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_to_oneself_is_recognised() {
        let own = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        own.bind(&SockAddr::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))).unwrap();
        own.connect(&own.local_addr().unwrap()).unwrap();
        assert!(is_its_own_peer(&own.into()));

        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(!is_its_own_peer(&other));
    }
}
