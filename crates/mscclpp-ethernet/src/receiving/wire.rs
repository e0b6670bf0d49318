use std::{
    io,
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::socket::{self, Piece};

/// The source of the bytes and the sink of the answers: a socket, or a test.
pub(crate) trait Wire {
    /// Receives what has arrived into the pieces, one after the other, and returns 0 at the end of the stream. While nothing
    /// has arrived, calls `idle` repeatedly: as long as it returns true, it waits for something itself; then this call blocks.
    ///
    /// # Safety
    /// The pieces must be writable memory to which nobody has a reference.
    unsafe fn receive(&mut self, pieces: &[Piece], idle: &mut dyn FnMut() -> bool) -> io::Result<usize>;

    /// Sends all of `bytes`.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Whether this side has closed the connection.
    fn is_closed(&self) -> bool;
}

/// A blocking socket.
pub(crate) struct SocketWire {
    stream: Arc<TcpStream>,
    closed: Arc<AtomicBool>,
    /// The time for which the thread polls for bytes before it sleeps.
    busy: Duration,
}

impl SocketWire {
    /// Makes a wire. To end it, set `closed` and shut the socket down.
    pub(crate) fn new(stream: Arc<TcpStream>, closed: Arc<AtomicBool>, busy: Duration) -> Self {
        Self { stream, closed, busy }
    }
}

impl Wire for SocketWire {
    unsafe fn receive(&mut self, pieces: &[Piece], idle: &mut dyn FnMut() -> bool) -> io::Result<usize> {
        let mut block = self.busy.is_zero() && !idle();
        let mut began: Option<Instant> = None;
        loop {
            // SAFETY: the caller makes the same promise.
            match unsafe { socket::receive(&self.stream, pieces, block) } {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            if !idle() {
                let began = *began.get_or_insert_with(Instant::now);
                block = self.busy.is_zero() || began.elapsed() >= self.busy;
                std::hint::spin_loop();
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        io::Write::write_all(&mut &*self.stream, bytes)
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}
