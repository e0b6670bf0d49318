use std::{
    net::TcpStream,
    sync::{Arc, atomic::Ordering},
};

use crate::SystemError;

use super::{
    Command, Complaint, Name, Shared,
    handshake::Request,
    header::{Inbound, Outbound, SealKey},
    message::Message,
};

/// A connection that carries a transport's data beside a link. Its handshake is complete. Its socket does not block.
pub struct DataConnection {
    /// The socket.
    pub stream: TcpStream,
    /// The headers that this side sends.
    pub outbound: Outbound,
    /// The headers that the peer sends.
    pub inbound: Inbound,
}

impl DataConnection {
    /// `ours` is the key of what this side says.
    pub(super) fn new(stream: TcpStream, ours: &SealKey, theirs: &SealKey) -> Self {
        Self { stream, outbound: Outbound::new(ours), inbound: Inbound::new(theirs) }
    }
}

/// Takes the connections on which peers send data, for a transport that has such connections.
///
/// Called on the thread of the links, so the calls must not block. Dropped when that thread ends.
pub trait Acceptor: Send + Sync {
    /// A peer with a link has opened a data connection. It counts for as long as `admission` is kept.
    ///
    /// # Errors
    /// If the system has no room for it. The connection is closed, which the peer sees, and the error is logged.
    fn accept(&self, connection: DataConnection, admission: Admission) -> Result<(), SystemError>;

    /// An endpoint was closed. The data connections to it must be closed too.
    fn close_endpoint(&self, name: &Name);
}

/// Counts a data connection that a peer opened, for their number is limited, and reports what goes wrong on it.
pub struct Admission {
    shared: Arc<Shared>,
    request: Request,
}

impl Admission {
    pub(super) fn new(shared: &Arc<Shared>, request: Request) -> Self {
        shared.admitted.fetch_add(1, Ordering::Relaxed);
        Self { shared: shared.clone(), request }
    }

    /// The endpoint of this process that the connection leads to.
    #[must_use]
    pub fn endpoint(&self) -> &Name {
        &self.request.endpoint
    }

    /// The peer's endpoint from which the connection comes, as the peer claims.
    #[must_use]
    pub fn peer(&self) -> &Name {
        &self.request.from
    }

    /// Refuses what came on the connection, for this `reason`. The peer is told on the link, which then ends. Links
    /// back to the peer end too, because what this side waits for over them would never come.
    pub fn refuse(self, complaint: Complaint, reason: String) {
        self.report(Message::Refused(complaint), reason);
    }

    /// Reports that nothing comes from the peer on this connection any more. If the link still lives, the network drops
    /// the packets of this connection alone; the peer is then told so, and links back to it become suspect.
    pub fn report_silence(self) {
        self.report(
            Message::Silence,
            "the network swallows a connection of its that carries data".to_owned(),
        );
    }

    /// Reports that the connection ended although neither side had said that it would, for this `reason`. If its link still
    /// lives, the peer is told on it, which ends it: the peer may not know. Links back to the peer become suspect, because
    /// what this side waits for over them may have been lost.
    pub fn report_broken(self, reason: String) {
        self.report(Message::Broken, reason);
    }

    fn report(self, message: Message, reason: String) {
        self.shared.commands.send(Command::Report { request: self.request, message, reason });
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.shared.admitted.fetch_sub(1, Ordering::Relaxed);
    }
}
