use std::{
    net::TcpStream,
    sync::{Arc, atomic::Ordering},
};

use crate::SystemError;

use super::{
    Command, Complaint, Name, Shared,
    handshake::{Request, Session},
    header::{Inbound, Outbound},
};

/// A connection that carries a transport's data beside a link, shaken hands on. Its socket does not block.
pub struct DataConnection {
    /// The socket.
    pub stream: TcpStream,
    /// What this side says on it.
    pub outbound: Outbound,
    /// What the peer says on it.
    pub inbound: Inbound,
}

impl DataConnection {
    /// As the side that connected has it.
    pub(super) fn dialled(stream: TcpStream, session: &Session) -> Self {
        let (outbound, inbound) = (Outbound::new(&session.initiator), Inbound::new(&session.responder));
        Self { stream, outbound, inbound }
    }

    /// As the side that listened has it.
    pub(super) fn accepted(stream: TcpStream, session: &Session) -> Self {
        let (outbound, inbound) = (Outbound::new(&session.responder), Inbound::new(&session.initiator));
        Self { stream, outbound, inbound }
    }
}

/// Who takes the connections on which peers send data, in a transport that has such connections.
///
/// Called on the thread of the links; the calls must not block. Dropped when that thread ends.
pub trait Acceptor: Send + Sync {
    /// A peer with a link opened one. It counts for as long as `seat` is kept.
    ///
    /// # Errors
    /// If the system has no room for it. The peer sees it close, and this is logged.
    fn accept(&self, connection: DataConnection, seat: Seat) -> Result<(), SystemError>;

    /// An endpoint was closed: what came in for it is to be closed too.
    fn close_endpoint(&self, name: &Name);
}

/// The place of a connection that a peer opened for data. There is a limit to how many are taken.
pub struct Seat {
    shared: Arc<Shared>,
    request: Request,
}

impl Seat {
    pub(super) fn take(shared: &Arc<Shared>, request: Request) -> Self {
        shared.seats.fetch_add(1, Ordering::Relaxed);
        Self { shared: shared.clone(), request }
    }

    /// The endpoint of this process that the connection leads to.
    #[must_use]
    pub fn endpoint(&self) -> &Name {
        &self.request.endpoint
    }

    /// The peer's endpoint that the connection comes from, as the peer says.
    #[must_use]
    pub fn peer(&self) -> &Name {
        &self.request.from
    }

    /// What came on the connection is refused, for that `reason`. The peer is told on the link, which ends for it. Links
    /// back to the peer end too: who waits there for something of that peer would wait in vain.
    pub fn refuse(self, complaint: Complaint, reason: String) {
        let request = self.request;
        self.shared.commands.send(Command::Refuse { request, complaint, reason });
    }

    /// Nothing comes from the peer any more on this connection. If the link lives, the network swallows the connection;
    /// then the peer is told so, and links back to it are suspected.
    pub fn report_silence(self) {
        self.shared.commands.send(Command::ReportSilence { request: self.request });
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.shared.seats.fetch_sub(1, Ordering::Relaxed);
    }
}
