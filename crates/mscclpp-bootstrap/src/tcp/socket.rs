//! The sockets of a rank.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Deref;

use mscclpp_net::socket::{self, Liveness};

/// The receive buffer of a connection. It is larger than the window of `protocol::outbox`, whatever the system's
/// default is, so the data under way always fits, and its acknowledgement shows that the other node is alive.
const RECEIVE_BUFFER: Option<usize> = Some(256 * 1024);

/// A socket that listens, until this is dropped.
///
/// A process that is being started has copies of all sockets until it runs its own program, so closing this one alone
/// would not free the port at once.
pub(crate) struct Listener(TcpListener);

impl Deref for Listener {
    type Target = TcpListener;

    fn deref(&self) -> &TcpListener {
        &self.0
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The call fails only for a socket that does not listen.
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }
}

pub(crate) fn listen(address: SocketAddr) -> io::Result<Listener> {
    socket::listen(address, RECEIVE_BUFFER).map(Listener)
}

/// Listens on a free port of all addresses, of both families if `v6` and the system has both.
pub(crate) fn listen_everywhere(v6: bool) -> io::Result<Listener> {
    socket::listen_everywhere(v6, RECEIVE_BUFFER).map(Listener)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_free_at_once_even_if_another_process_has_a_copy_of_the_listener() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let (address, _copy) = (listener.local_addr().unwrap(), listener.try_clone().unwrap());
        assert!(listen(address).is_err());
        drop(listener);
        listen(address).unwrap();
    }
}
