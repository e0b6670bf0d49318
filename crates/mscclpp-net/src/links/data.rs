use std::{
    net::TcpStream,
    sync::{Arc, atomic::Ordering},
};

use crate::SystemError;

use super::{
    Command, LinksState, Name,
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
    /// Makes a connection whose outgoing headers are sealed with `ours` and whose incoming ones with `theirs`.
    pub(super) fn new(stream: TcpStream, ours: &SealKey, theirs: &SealKey) -> Self {
        Self { stream, outbound: Outbound::new(ours), inbound: Inbound::new(theirs) }
    }
}

/// Takes the connections on which peers send data, for a transport that has such connections.
///
/// The methods are called on the thread of the links, so they must not block. The acceptor is dropped when that
/// thread ends.
pub trait Acceptor: Send + Sync {
    /// Takes a data connection that a peer with a link has opened. The connection counts towards the limit for as
    /// long as `admission` is kept.
    ///
    /// # Errors
    /// If the system has no room for the connection. It is then closed, which the peer sees, and the error is logged.
    fn accept(&self, connection: DataConnection, admission: Admission) -> Result<(), SystemError>;

    /// Closes the data connections to an endpoint that was closed.
    fn close_endpoint(&self, name: &Name);
}

/// Counts a data connection that a peer opened, because their number is limited, and reports failures of the
/// connection.
pub struct Admission {
    shared: Arc<LinksState>,
    request: Request,
}

impl Admission {
    pub(super) fn new(shared: &Arc<LinksState>, request: Request) -> Self {
        shared.admitted.fetch_add(1, Ordering::Relaxed);
        Self { shared: shared.clone(), request }
    }

    /// Returns the endpoint of this process that the connection leads to.
    #[must_use]
    pub fn endpoint(&self) -> &Name {
        &self.request.endpoint
    }

    /// Returns the endpoint that the peer claims to connect from.
    #[must_use]
    pub fn peer(&self) -> &Name {
        &self.request.from
    }

    /// Refuses what came on the connection. `reason` is for this side's log and errors. `told` is sent to the peer on the
    /// link, cut to the length of a failure's reason, and the link then ends. Links back to the peer end too, because
    /// nothing that this side waits for over them would ever come.
    pub fn refuse(self, told: String, reason: String) {
        self.report(Message::Refused, told, reason);
    }

    /// Reports that nothing comes from the peer on this connection any more. If the link still lives, the network
    /// drops the packets of this connection alone; the peer is then notified, and links back to it become suspect.
    pub fn report_silence(self) {
        self.report(
            Message::Silence,
            String::new(),
            "the network swallows a connection of its that carries data".to_owned(),
        );
    }

    /// Reports that the connection ended although neither side had announced that it would, for this `reason`. If the
    /// link still lives, the peer is notified on it, which ends the link: the peer may not know of the failure. Links
    /// back to the peer become suspect, because data that this side waits for over them may have been lost.
    pub fn report_broken(self, reason: String) {
        self.report(Message::Broken, String::new(), reason);
    }

    fn report(self, message: Message, told: String, reason: String) {
        self.shared.commands.send(Command::Report { request: self.request, message, told, reason });
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.shared.admitted.fetch_sub(1, Ordering::Relaxed);
    }
}
