//! The connections on which peers' data arrives. Each has its own thread.

use std::{
    net::{Shutdown, TcpStream},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use mscclpp_net::{
    SystemError,
    links::{Acceptor, Admission, DataConnection, Name},
    socket::is_silence,
};
use parking_lot::Mutex;

use crate::{
    error::SystemCall,
    receiving::{End, Placer, Receiver, SocketWire},
    regions::{KnownRegions, Regions},
    settings::Settings,
    socket,
};

/// The running receivers. Dropping this closes them; no receiver keeps it alive.
pub(super) struct Receivers {
    settings: Settings,
    regions: Arc<Regions>,
    running: Mutex<Vec<Running>>,
    this: Weak<Self>,
}

/// The handle by which a running receiver is closed.
struct Running {
    endpoint: Name,
    stream: Arc<TcpStream>,
    closed: Arc<AtomicBool>,
}

impl Running {
    /// Makes the receiver's thread end.
    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // This fails for a socket that is no longer connected.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Receivers {
    pub(super) fn new(settings: Settings, regions: Arc<Regions>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self { settings, regions, running: Mutex::default(), this: this.clone() })
    }

    /// Removes the receiver of that socket from the list.
    fn remove(&self, stream: &Arc<TcpStream>) {
        self.running.lock().retain(|running| !Arc::ptr_eq(&running.stream, stream));
    }
}

impl Acceptor for Receivers {
    fn accept(
        &self,
        DataConnection { stream, outbound, inbound }: DataConnection,
        admission: Admission,
    ) -> Result<(), SystemError> {
        stream.set_nonblocking(false).during("making a socket block")?;
        stream.set_nodelay(true).during("setting up a socket")?;
        socket::RECEIVER.apply(&stream).during("setting up a socket")?;
        let (stream, closed) = (Arc::new(stream), Arc::new(AtomicBool::new(false)));
        let settings = self.settings.clone();
        let mut receiver = Receiver::new(
            SocketWire::new(stream.clone(), closed.clone(), settings.busy),
            inbound,
            outbound,
            KnownRegions::new(self.regions.clone(), Some(stream.clone())),
            Placer::new(settings),
        );
        let running = Running { endpoint: *admission.endpoint(), stream: stream.clone(), closed };
        self.running.lock().push(running);
        let (this, own) = (self.this.clone(), stream.clone());
        let run = move || {
            let end = receiver.run();
            // The receiver is dropped before anybody learns of the end: this frees the staging's memory and closes the socket.
            drop(receiver);
            if let Some(receivers) = this.upgrade() {
                receivers.remove(&own);
            }
            drop(own);
            report(end, admission);
        };
        let started = std::thread::Builder::new().name("mscclpp-eth-in".to_owned()).spawn(run);
        if started.is_err() {
            self.remove(&stream);
        }
        started.during("starting a thread that receives").map(drop)
    }

    fn close_endpoint(&self, name: &Name) {
        self.running.lock().iter().filter(|running| running.endpoint == *name).for_each(Running::close);
    }
}

/// Reports to both sides how receiving ended, unless both know.
fn report(end: End, admission: Admission) {
    match end {
        // The peer sent something wrong, and may not know it.
        End::Fault(fault) => admission.refuse(fault.to_string(), fault.to_string()),
        // Either the peer dropped its queue, and everything has arrived; or the endpoint here was closed, and the link has said
        // goodbye, or ends with this process.
        End::Goodbye | End::Closed => {}
        // The peer's process or its connection failed, or a proxy or firewall between them ended the stream. If the process
        // died, or has closed its endpoint, its link says so before a suspicion is taken for certain.
        End::Cut(at) => admission.report_broken(format!("its data ended {at}")),
        // The network drops what is sent to the peer.
        End::Io(error) if is_silence(&error) => admission.report_silence(),
        // The peer's system, or a proxy or firewall between them, reset the connection: like a stream that was cut.
        End::Io(error) => admission.report_broken(format!("receiving from it failed: {error}")),
    }
}

impl Drop for Receivers {
    fn drop(&mut self) {
        self.running.get_mut().iter().for_each(Running::close);
    }
}
