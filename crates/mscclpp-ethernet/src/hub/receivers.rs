//! The connections on which peers' data arrives, each with a thread of its own.

use std::{
    net::{Shutdown, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use mscclpp_net::SystemError;

use crate::{
    error::SystemCall,
    protocol::{
        frame::{Inbound, Outbound},
        handshake::{Name, Request, Session},
    },
    receiving::{Order, Placer, Receiver, SocketWire},
    regions::KnownRegions,
    socket,
};

use super::{Command, Shared};

/// One receiver, as the hub sees it.
struct Running {
    id: u64,
    request: Request,
    stream: Arc<TcpStream>,
    closed: Arc<AtomicBool>,
}

impl Running {
    /// Has the thread end, which sends [`Command::Ended`].
    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // It fails for a socket that is not connected any more.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// The receivers that run.
#[derive(Default)]
pub(super) struct Receivers {
    running: Vec<Running>,
    started: u64,
}

impl Receivers {
    pub(super) fn start(
        &mut self,
        shared: &Arc<Shared>,
        stream: TcpStream,
        request: Request,
        session: Session,
    ) -> Result<(), SystemError> {
        stream.set_nonblocking(false).during("making a socket block")?;
        stream.set_nodelay(true).during("setting up a socket")?;
        socket::RECEIVER.apply(&stream).during("setting up a socket")?;
        let (stream, closed) = (Arc::new(stream), Arc::new(AtomicBool::new(false)));
        let settings = &shared.settings;
        let mut receiver = Receiver::new(
            SocketWire::new(stream.clone(), closed.clone(), settings.busy),
            Inbound::new(session.initiator),
            Outbound::new(session.responder),
            KnownRegions::new(shared.regions.clone(), Some(stream.clone())),
            Placer::new(settings.clone(), if settings.broken_order { Order::Broken } else { Order::Kept }),
        );
        let (id, shared) = (self.started, shared.clone());
        self.started += 1;
        std::thread::Builder::new()
            .name("mscclpp-eth-in".to_owned())
            .spawn(move || {
                let end = receiver.run();
                // Before the hub knows: this frees the memory of the staging and closes the socket.
                drop(receiver);
                shared.commands.send(Command::Ended { receiver: id, request, end });
            })
            .during("starting a thread that receives")?;
        self.running.push(Running { id, request, stream, closed });
        Ok(())
    }

    pub(super) fn count(&self) -> usize {
        self.running.len()
    }

    /// Forgets a receiver that has ended.
    pub(super) fn remove(&mut self, id: u64) {
        self.running.retain(|running| running.id != id);
    }

    /// Ends the receivers of an endpoint.
    pub(super) fn close_endpoint(&self, name: &Name) {
        self.running.iter().filter(|running| running.request.endpoint == *name).for_each(Running::close);
    }
}

impl Drop for Receivers {
    fn drop(&mut self) {
        self.running.iter().for_each(Running::close);
    }
}
