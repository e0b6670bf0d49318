//! The sockets of a rank.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};

use mscclpp_net::socket::{self, Liveness};

/// The receive buffer of a connection. It is larger than the window of `protocol::outbox`, whatever the system's
/// default is, so the data under way always fits, and its acknowledgement shows that the other node is alive.
const RECEIVE_BUFFER: Option<usize> = Some(256 * 1024);

pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    socket::listen(address, RECEIVE_BUFFER)
}

/// Listens on a free port of all addresses, of both families if `v6` and the system has both.
pub(crate) fn listen_everywhere(v6: bool) -> io::Result<TcpListener> {
    socket::listen_everywhere(v6, RECEIVE_BUFFER)
}

/// Accepts a connection, if one waits.
pub(crate) fn accept(listener: &TcpListener) -> io::Result<Option<(TcpStream, SocketAddr)>> {
    let Some((stream, from)) = socket::accept(listener)? else { return Ok(None) };
    stream.set_nodelay(true)?;
    Liveness::PROMPT.apply(&stream)?;
    Ok(Some((stream, from)))
}

/// Begins to connect. [`mscclpp_net::socket::is_connected`] tells the outcome.
pub(crate) fn begin_connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = socket::begin_connect(address, RECEIVE_BUFFER)?;
    Liveness::PROMPT.apply(&stream)?;
    Ok(stream)
}
