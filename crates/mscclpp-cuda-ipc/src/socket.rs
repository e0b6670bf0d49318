//! The Unix socket: sequenced packets at a random name in the abstract namespace.
//!
//! The abstract namespace needs no common file system and no cleaning up. It belongs to the network namespace, which
//! processes of one node must share. Packets keep their boundaries, so no message has to be put together here.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use mscclpp_net::SystemCall;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
        listen, recvmsg, send, sendmsg, socket_with,
    },
};

use crate::{
    error::{Error, Result},
    message::{Handle, Request},
};

/// How long a peer's process may take to answer.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

fn new_socket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).during("making a Unix socket")?)
}

/// Opens a socket that listens at `address`.
pub(crate) fn listener(address: &str) -> Result<OwnedFd> {
    let socket = new_socket()?;
    let name = SocketAddrUnix::new_abstract_name(address.as_bytes()).during("naming a Unix socket")?;
    bind(&socket, &name).during("binding a Unix socket")?;
    listen(&socket, 1024).during("listening on a Unix socket")?;
    Ok(socket)
}

/// Returns the next connection that waits at `listener`, if any. An error is the system's: out of descriptors or
/// memory.
pub(crate) fn accept(listener: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    loop {
        match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => return Ok(Some(socket)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Checks that the process at the other end belongs to the same user, or one of the two to root.
pub(crate) fn user_fits(socket: impl AsFd) -> std::result::Result<(), (u32, u32)> {
    let ours = rustix::process::geteuid().as_raw();
    match user_of_peer(socket.as_fd()) {
        Some(theirs) if may_talk(ours, theirs) => Ok(()),
        theirs => Err((theirs.unwrap_or(u32::MAX), ours)),
    }
}

fn may_talk(ours: u32, theirs: u32) -> bool {
    const ROOT: u32 = 0;
    ours == theirs || ours == ROOT || theirs == ROOT
}

/// Returns the user of the process at the other end. (rustix can ask for this too, but fails if the process has no id
/// here, such as one in another PID namespace.)
fn user_of_peer(socket: BorrowedFd<'_>) -> Option<u32> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of_val(&peer) as libc::socklen_t;
    // SAFETY: the descriptor is open while it is borrowed. The kernel writes at most `len` bytes to `peer`, which is
    // that long, and all of whose values are valid.
    let outcome = unsafe {
        let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut peer).cast(), &raw mut len)
    };
    (outcome == 0).then_some(peer.uid)
}

/// Sends `request` to the process that listens at `address` and waits for its answer.
///
/// Returns the open connection, the answer, and the descriptor that came with it.
pub(crate) fn ask(address: &str, request: Request) -> Result<(OwnedFd, Handle, Option<OwnedFd>)> {
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    let timed_out = || Error::Timeout { address: address.to_owned(), after: ANSWER_TIMEOUT };
    let gone = || Error::Gone { address: address.to_owned() };
    let socket = new_socket()?;
    let name = SocketAddrUnix::new_abstract_name(address.as_bytes()).during("naming a Unix socket")?;
    loop {
        match connect(&socket, &name) {
            Ok(()) => break,
            // The peer's backlog is full until the peer accepts.
            Err(Errno::AGAIN | Errno::INTR) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(Errno::AGAIN | Errno::INTR) => return Err(timed_out()),
            Err(Errno::CONNREFUSED) => return Err(gone()),
            Err(error) => Err(error).during("connecting to a peer's Unix socket")?,
        }
    }
    if let Err((theirs, ours)) = user_fits(&socket) {
        return Err(Error::WrongUser { address: address.to_owned(), theirs, ours });
    }
    match send(&socket, &request.encode(), SendFlags::NOSIGNAL) {
        Ok(_) => {}
        Err(Errno::PIPE | Errno::CONNRESET) => return Err(gone()),
        Err(error) => Err(error).during("asking a peer over its Unix socket")?,
    }
    let mut bytes = [0; Handle::LEN];
    loop {
        match receive(&socket, &mut bytes) {
            Ok((0, _)) | Err(Errno::CONNRESET | Errno::PIPE) => return Err(gone()),
            Ok((len, descriptor)) => return Ok((socket, Handle::decode(&bytes[..len])?, descriptor)),
            Err(Errno::AGAIN | Errno::INTR) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(timed_out());
                }
                wait_readable(socket.as_fd(), left)?;
            }
            Err(error) => Err(error).during("reading a peer's answer")?,
        }
    }
}

/// Opens a connection without sending anything.
#[cfg(test)]
pub(crate) fn connect_to(address: &str) -> Result<OwnedFd> {
    let socket = new_socket()?;
    let name = SocketAddrUnix::new_abstract_name(address.as_bytes()).during("naming a Unix socket")?;
    connect(&socket, &name).during("connecting to a peer's Unix socket")?;
    Ok(socket)
}

fn wait_readable(socket: BorrowedFd<'_>, timeout: Duration) -> Result<()> {
    let timeout = Timespec::try_from(timeout).ok();
    match poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::IN)], timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error).during("waiting for a peer's answer")?,
    }
}

/// Receives one packet and the descriptor beside it; never blocks.
pub(crate) fn receive(socket: &OwnedFd, bytes: &mut [u8]) -> rustix::io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((got.bytes, descriptor))
}

/// Sends one packet, with a descriptor beside it if one is given; never blocks. A packet that cannot be sent is lost.
pub(crate) fn answer(socket: &OwnedFd, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<_> = descriptor.into_iter().collect();
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    if let Err(error) = sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags) {
        tracing::debug!(target: "mscclpp::conn", %error, "answering a peer");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks who may talk to whom. `tests/it/other_user.rs`, whose threads may become other users, tests that sockets
    /// are checked.
    #[test]
    fn users_talk_to_themselves_and_to_root() {
        let [root, one, another] = [0, 1000, 1001];
        for (ours, theirs, may) in [
            (one, one, true),
            (root, root, true),
            (one, root, true),
            (root, one, true),
            (one, another, false),
            (another, one, false),
        ] {
            assert_eq!(may_talk(ours, theirs), may, "{ours} and {theirs}");
        }
    }
}
