//! Ports of this node that are bound, not guessed.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::{Mutex, PoisonError},
};

use socket2::{Domain, Socket, Type};

/// Returns a listener at a port of `127.0.0.1` that the system chose, and its address.
///
/// # Panics
/// Panics if the system has no free port.
pub fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

/// Returns the number of a port that this process keeps until it ends, for code that takes only a port number.
///
/// A socket is bound to the port at all addresses, and does not listen. Linux gives such a port to nobody who asks
/// for any port, whether to bind or to connect. A listener that asks for this one with `SO_REUSEADDR`, as listeners
/// do, gets it, unless another listens there already.
///
/// # Panics
/// Panics if the system has no free port.
pub fn reserve_port() -> u16 {
    static BOUND: Mutex<Vec<Socket>> = Mutex::new(Vec::new());
    let bound = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    bound.set_reuse_address(true).expect("an address that can be used again");
    bound.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)).into()).expect("a port");
    let address = bound.local_addr().expect("an address").as_socket().expect("one of the Internet");
    BOUND.lock().unwrap_or_else(PoisonError::into_inner).push(bound);
    address.port()
}

#[cfg(test)]
mod tests {
    use std::{io::ErrorKind, net::TcpStream};

    use super::*;

    #[test]
    fn who_knows_a_reserved_port_can_listen_there_again_and_again() {
        let port = reserve_port();
        for _ in 0..3 {
            let listener = TcpListener::bind(("127.0.0.1", port)).expect("a listener at a reserved port");
            let address = listener.local_addr().expect("an address");
            let _visitor = TcpStream::connect(address).expect("a connection");
            let (_guest, _) = listener.accept().expect("a connection");
            let second = TcpListener::bind(address).map(drop).map_err(|error| error.kind());
            assert_eq!(second, Err(ErrorKind::AddrInUse));
        }
        let nobody = TcpStream::connect(("127.0.0.1", port)).map(drop).map_err(|error| error.kind());
        assert_eq!(nobody, Err(ErrorKind::ConnectionRefused));
    }

    #[test]
    fn a_reserved_port_is_nobody_elses() {
        let mut numbers: Vec<u16> = (0..200).map(|_| reserve_port()).collect();
        numbers
            .extend((0..200).map(|_| listen()).collect::<Vec<_>>().iter().map(|(_, address)| address.port()));
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count);
    }
}
