//! The calls that move bytes between sockets and registered memory, and how data connections are watched.

use std::{io, net::TcpStream, os::fd::AsRawFd, time::Duration};

use mscclpp_net::socket::Liveness;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How a sending end is watched. The time for which its data stays unacknowledged has no limit: a peer that is stopped, or
/// slower than this side, may close its window for any time. The link beside it shows when the peer is gone; probes
/// clean up the rest of the connection.
pub(crate) const SENDER: Liveness =
    Liveness { idle: Duration::from_secs(5), interval: Duration::from_secs(2), unacknowledged: None };

/// How a receiving end is watched. It sends only answers to flushes, which fit the peer's buffer. So it can notice that the
/// network drops the packets of this one connection while the link lives: its probes or answers are not acknowledged.
pub(crate) const RECEIVER: Liveness = Liveness { unacknowledged: Some(Duration::from_secs(15)), ..SENDER };

/// Sends the bytes that [`send`] made the system hold back. Any thread may call this.
pub(crate) fn push(stream: &TcpStream) {
    // Setting the option again makes the system send. It cannot fail on a TCP socket; if it did, the system would send
    // after 200 milliseconds.
    let _ = stream.set_nodelay(true);
}

/// A range of memory to send or to receive into. Nobody may have a reference to it, like to all registered memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) start: *mut u8,
    pub(crate) len: usize,
}

impl Piece {
    pub(crate) const NONE: Self = Self { start: std::ptr::null_mut(), len: 0 };

    /// The piece of bytes that are only read.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self { start: bytes.as_ptr().cast_mut(), len: bytes.len() }
    }

    pub(crate) fn of_mut(bytes: &mut [u8]) -> Self {
        Self { start: bytes.as_mut_ptr(), len: bytes.len() }
    }

    /// The piece without its first `count` bytes, of which it must have as many.
    pub(crate) fn after(self, count: usize) -> Self {
        Self { start: self.start.wrapping_add(count), len: self.len - count }
    }
}

/// The most pieces that one call takes.
pub(crate) const MAX_PIECES: usize = 16;

fn vectors(pieces: &[Piece]) -> ([libc::iovec; MAX_PIECES], usize) {
    let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MAX_PIECES];
    let mut count = 0;
    for piece in pieces.iter().filter(|piece| piece.len > 0).take(MAX_PIECES) {
        vectors[count] = libc::iovec { iov_base: piece.start.cast(), iov_len: piece.len };
        count += 1;
    }
    (vectors, count)
}

fn message(vectors: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: an empty header consists of null pointers and zero lengths.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = vectors.len() as _;
    message
}

/// How a call sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendMode {
    /// Sends as much as the system takes at once.
    NonBlocking,
    /// Sends as much as the system takes at once. The system holds back a last segment that is not full until the next
    /// call, [`push`], or 200 milliseconds later.
    NonBlockingMore,
    /// Blocks until the system has taken everything, or the socket's time limit is over.
    Blocking,
}

/// Sends the first [`MAX_PIECES`] pieces, and returns how many bytes the system took.
///
/// # Safety
/// All pieces must be readable memory.
pub(crate) unsafe fn send(stream: &TcpStream, pieces: &[Piece], mode: SendMode) -> io::Result<usize> {
    let (mut vectors, count) = vectors(pieces);
    let message = message(&mut vectors[..count]);
    let flags = libc::MSG_NOSIGNAL
        | match mode {
            SendMode::NonBlocking => libc::MSG_DONTWAIT,
            SendMode::NonBlockingMore => libc::MSG_DONTWAIT | libc::MSG_MORE,
            SendMode::Blocking => 0,
        };
    // SAFETY: the header points to `count` vectors that live, and those to readable memory, as the caller promises. The
    // system only reads that memory.
    check(unsafe { libc::sendmsg(stream.as_raw_fd(), &raw const message, flags) })
}

/// Receives bytes that have arrived into the pieces, one after the other, and returns 0 at the end of the stream. Blocks
/// until there are some, unless `block` is false.
///
/// # Safety
/// All pieces must be writable memory to which nobody has a reference.
pub(crate) unsafe fn receive(stream: &TcpStream, pieces: &[Piece], block: bool) -> io::Result<usize> {
    let (mut vectors, count) = vectors(pieces);
    let mut message = message(&mut vectors[..count]);
    let flags = if block { 0 } else { libc::MSG_DONTWAIT };
    // SAFETY: the header points to `count` vectors that live, and those to writable memory, as the caller promises.
    check(unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, flags) })
}

fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Whether the peer, or a proxy or firewall between the two, has ended the connection. Does not block.
pub(crate) fn has_ended(stream: &TcpStream) -> bool {
    let mut polled = [PollFd::new(stream, PollFlags::RDHUP)];
    // Errors and resets are always reported. If polling fails, the next call on the socket shows the end.
    poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Whether a failed call only has to be repeated, now or later.
pub(crate) fn is_not_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
