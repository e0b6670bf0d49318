//! A queue: a list of operations, a thread that sends them, and one that reads the answers of the peer's hub.

use std::{
    io::{Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
};

use mscclpp::{
    errors::CoreError,
    provider::{LinkMonitor, Memories, MemoryRegion, Operation, Queue, RouteId, Routes},
};

use crate::{
    Imported, Registered, Result, foreign,
    staging::{CHUNK, Staging},
    wire::Frame,
};

/// An item for the sending thread: a frame, and the source of a write, which is kept until its data has been sent.
pub(crate) struct Outgoing {
    frame: Frame,
    source: Option<(Arc<MemoryRegion>, u64)>,
}

/// The ticket of the flush that ends a queue.
const END: u64 = u64::MAX;

/// Sends items until the queue is dropped, and then the remaining ones.
fn send(mut stream: UnixStream, items: &Receiver<Outgoing>, monitor: &LinkMonitor) {
    let mut staging = Staging::new();
    let mut send = |item: Outgoing| -> Option<()> {
        stream.write_all(&item.frame.encode()).ok()?;
        let (Frame::Write { len, .. }, Some((region, offset))) = (item.frame, item.source) else {
            return Some(());
        };
        for done in (0..len).step_by(CHUNK as usize) {
            let part = CHUNK.min(len - done);
            staging.load(&region, offset + done, part)?;
            stream.write_all(staging.bytes(part)).ok()?;
        }
        Some(())
    };
    for item in items {
        if send(item).is_none() {
            // Signals are lost with the queue, so nobody may go on as if they had come.
            return monitor.lost("a queue to it broke");
        }
    }
    // The peer's hub reads up to this end. Sending fails if the hub is gone.
    let _ = stream.write_all(&Frame::Flush { ticket: END }.encode());
    let _ = stream.shutdown(Shutdown::Write);
}

/// Reads the tickets that the peer's hub has reached, until the hub ends the connection: after the last item, because the hub
/// is gone, or because it refused an operation, such as a write to a withdrawn region.
fn hear(mut stream: UnixStream, reached: &AtomicU64, monitor: &LinkMonitor) {
    let mut ticket = [0; 8];
    while stream.read_exact(&mut ticket).is_ok() {
        reached.store(u64::from_le_bytes(ticket), Ordering::Release);
    }
    if reached.load(Ordering::Relaxed) != END {
        monitor.lost("it hung up on a queue");
    }
}

pub(crate) struct PostQueue {
    pub(crate) outgoing: SyncSender<Outgoing>,
    reached: Arc<AtomicU64>,
    pub(crate) monitor: LinkMonitor,
    /// The routes by number: the peer's region, and the region to write from.
    routes: Routes<(u64, Option<Arc<MemoryRegion>>)>,
}

impl Queue for PostQueue {
    fn prepare(&mut self, route: RouteId, memories: Memories<'_>) -> Result<()> {
        let (dst, src) = memories.own::<Imported, Registered>().map_err(foreign)?;
        // A route without a source is for updates.
        if src.is_none() && !dst.aligned {
            let problem = "Post updates memory that starts at a multiple of 8".to_owned();
            return Err(CoreError::InvalidArgument(problem));
        }
        // The route keeps the region and not the registration: a region that its owner withdraws is withdrawn.
        self.routes.insert(route, (dst.id, src.map(|src| src.region.clone())));
        Ok(())
    }

    /// Removes a route. Submitted operations keep their memory themselves.
    fn release(&mut self, route: RouteId) {
        self.routes.remove(route);
    }

    unsafe fn submit(&mut self, batch: &[Operation]) -> Result<usize> {
        self.monitor.check()?;
        let mut taken = 0;
        for operation in batch {
            match self.item(*operation).map(|item| self.outgoing.try_send(item)) {
                Ok(Ok(())) => taken += 1,
                // A full queue is no failure: the caller submits the rest again.
                Ok(Err(TrySendError::Full(_))) => break,
                Ok(Err(TrySendError::Disconnected(_))) if taken == 0 => return Err(self.broken()),
                Err(error) if taken == 0 => return Err(error),
                _ => break,
            }
        }
        Ok(taken)
    }

    fn progress(&mut self) -> Result<u64> {
        self.monitor.check()?;
        Ok(self.reached.load(Ordering::Acquire))
    }
}

impl PostQueue {
    pub(crate) fn open(stream: UnixStream, limit: usize, monitor: LinkMonitor) -> Result<Self> {
        let (outgoing, items) = sync_channel(limit);
        let reached = Arc::new(AtomicU64::new(0));
        let start = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let started = thread::Builder::new().name(name.to_owned()).spawn(work);
            started.map(drop).map_err(|e| CoreError::system("starting a thread", e))
        };
        let answers = stream.try_clone().map_err(|e| CoreError::system("opening a queue", e))?;
        let (ticket, lost) = (reached.clone(), monitor.clone());
        start("post-answers", Box::new(move || hear(answers, &ticket, &lost)))?;
        let lost = monitor.clone();
        start("post-sender", Box::new(move || send(stream, &items, &lost)))?;
        Ok(Self { outgoing, reached, monitor, routes: Routes::default() })
    }

    pub(crate) fn item(&self, operation: Operation) -> Result<Outgoing> {
        let route = |route: RouteId| {
            self.routes
                .get(route)
                .ok_or_else(|| CoreError::InvalidArgument(format!("{route:?} was not prepared")))
        };
        Ok(match operation {
            Operation::Write { route: id, dst_offset, src_offset, len } => {
                let (region, source) = route(id)?;
                let source = source.clone().map(|source| (source, src_offset));
                Outgoing { frame: Frame::Write { region: *region, offset: dst_offset, len }, source }
            }
            Operation::Update { route: id, offset, value, .. } => {
                Outgoing { frame: Frame::Update { region: route(id)?.0, offset, value }, source: None }
            }
            Operation::Flush { ticket } => Outgoing { frame: Frame::Flush { ticket }, source: None },
            other => return Err(CoreError::InvalidArgument(format!("Post cannot do {other:?}"))),
        })
    }

    pub(crate) fn broken(&self) -> CoreError {
        let reason = "a queue to it broke".to_owned();
        CoreError::PeerLost { peer: self.monitor.label(), reason }
    }
}
