use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::time::Instant;

/// The listener of a rank, and when and how it accepts connections.
#[derive(Default)]
pub(super) struct Acceptor {
    pub(super) listener: Option<TcpListener>,
    /// The time at which to go on accepting. It is kept because the listener is reported once for each connection.
    pub(super) resume_at: Option<Instant>,
    /// A spare descriptor, at rank 0 while the job forms, with which to turn connections away when no other is left.
    pub(super) spare: Option<UnixDatagram>,
}
