use std::{
    collections::VecDeque,
    io,
    sync::{Arc, atomic::Ordering},
};

use mscclpp_core::{
    Error as CoreError, MemoryRegion, Result as CoreResult,
    provider::{Foreign, Memories, Operation, Queue, RouteId, Routes},
};

use mscclpp_net::links::{
    DataConnection, Suspicions,
    header::{HEADER, Inbound},
};

use crate::{
    checksum,
    error::{Error, Result, SystemCall},
    frame::Frame,
    link_state::{Carrier, LinkState},
    region::{LocalRegion, PeerRegion},
    settings::Settings,
    socket::{self, Piece, SendMode},
};

use super::{
    connection::{BACKLOG, Head, SendConnection, Sent, SourceRange, Work},
    driver::{Driver, LOOK},
};

/// The most bytes of host memory that the owner sends itself; longer writes are handed over.
const INLINE: u64 = 32 << 10;
/// The most operations that may wait to be sent, unless the endpoint sets another number. It keeps the driver busy.
const MAX_WAITING: u32 = 4096;

/// Opens a queue over a connection whose handshake is complete.
pub(crate) fn open(
    DataConnection { stream, outbound, inbound }: DataConnection,
    link: &Arc<LinkState>,
    suspicions: Suspicions,
    settings: &Settings,
    max_waiting: Option<u32>,
) -> Result<Box<dyn Queue>> {
    // The driver blocks in the call that sends; the owner asks the system with each call not to block.
    stream.set_nonblocking(false).during("making a socket block")?;
    stream.set_write_timeout(Some(LOOK)).during("setting up a socket")?;
    let checksums = settings.checksums == Some(true);
    let connection =
        Arc::new(SendConnection::new(stream, outbound, link.clone(), suspicions, settings.clone()));
    let driver = Driver::new(connection.clone());
    let thread = std::thread::Builder::new()
        .name("mscclpp-eth-out".to_owned())
        .spawn(move || driver.run())
        .during("starting the thread that helps a queue to send")?;
    connection.set_driver(thread.thread().clone());
    let carrier: Arc<dyn Carrier> = connection.clone();
    link.add_carrier(&carrier);
    Ok(Box::new(EthernetQueue {
        answers: Answers { inbound, bytes: [0; 16 * HEADER], filled: 0 },
        checksums,
        max_waiting: max_waiting.unwrap_or(MAX_WAITING).into(),
        connection,
        given: 0,
        handed_over: Vec::with_capacity(BACKLOG),
        routes: Routes::default(),
        completed: 0,
        flushes: VecDeque::with_capacity(BACKLOG),
    }))
}

struct EthernetQueue {
    connection: Arc<SendConnection>,
    answers: Answers,
    checksums: bool,
    max_waiting: u64,
    /// The number of works handed over, including those of the current batch. The driver gets a batch as a whole: otherwise it
    /// might send a write without its signal, and the peer would wake up twice.
    given: u64,
    handed_over: Vec<Work>,
    /// The routes by their number.
    routes: Routes<EthernetRoute>,
    /// The last ticket that was answered.
    completed: u64,
    /// The unanswered tickets, each with the number of works that the driver must have carried out before the flush is
    /// sent. Until then there is no need to look for an answer.
    flushes: VecDeque<(u64, u64)>,
}

/// The two memories of a route, in the form in which frames and works name them.
struct EthernetRoute {
    to: PeerRegion,
    source: Option<Arc<MemoryRegion>>,
}

/// The peer's answers, which come on the same connection.
struct Answers {
    inbound: Inbound,
    bytes: [u8; 16 * HEADER],
    filled: usize,
}

impl EthernetQueue {
    /// Whether the owner may send by itself (invariant 1).
    fn is_caught_up(&self) -> bool {
        self.connection.done.load(Ordering::Acquire) == self.given
    }

    fn hand_over(&mut self, head: Head, source: Option<SourceRange>) {
        self.given += 1;
        self.handed_over.push(Work { head, source });
    }

    /// Whether as many operations are waiting to be sent as may wait.
    fn is_full(&self) -> bool {
        self.given - self.connection.done.load(Ordering::Acquire) >= self.max_waiting
    }

    fn route(&self, route: RouteId) -> Result<&EthernetRoute> {
        Ok(self.routes.get(route).ok_or(Foreign("the route"))?)
    }

    /// Starts an operation for which there is room. Does nothing if the connection has failed: the link reports the reason,
    /// now or soon.
    fn start(&mut self, operation: Operation) -> CoreResult<()> {
        match operation {
            Operation::Write { route, dst_offset, src_offset, len } => {
                let EthernetRoute { to, source: Some(from) } = self.route(route)? else {
                    return Err(Error::from(Foreign("the route")).into());
                };
                to.check()?;
                if len == 0 || self.connection.is_broken() {
                    return Ok(());
                }
                let source = SourceRange { region: from.clone(), address: from.ptr().add(src_offset), len };
                let (region, offset, checksum) = (to.id(), dst_offset, self.checksums);
                let inline = len <= INLINE && from.gpu().is_none() && self.is_caught_up();
                match inline {
                    true => self.write_inline(region, offset, source),
                    false => {
                        let frame = Frame::Write { region, offset, len, checksum: None };
                        self.hand_over(Head::Frame { frame, checksum }, Some(source));
                    }
                }
            }
            Operation::Update { route, offset, value, .. } => {
                let to = &self.route(route)?.to;
                to.check()?;
                let region = to.id();
                if !self.connection.is_broken() {
                    self.control(Frame::Update { region, offset, value });
                }
            }
            Operation::Flush { ticket } => {
                // If the connection has failed, this ticket is never completed.
                if !self.connection.is_broken() {
                    self.control(Frame::Flush { ticket });
                }
                self.flushes.push_back((ticket, self.given));
            }
            other => {
                return Err(CoreError::InvalidArgument(format!(
                    "the Ethernet transport does not know the operation {other:?}"
                )));
            }
        }
        Ok(())
    }

    fn control(&mut self, frame: Frame) {
        if !self.is_caught_up() {
            return self.hand_over(Head::Frame { frame, checksum: false }, None);
        }
        let header = self.connection.outbound.seal(frame);
        // A write that the system holds back leaves with this frame.
        self.connection.held.store(false, Ordering::Relaxed);
        // SAFETY: there is no data.
        match unsafe { self.connection.try_send(&header, Piece::NONE, SendMode::NonBlocking) } {
            Sent::All | Sent::Nothing => {}
            Sent::Part(sent) => self.hand_over(Head::Begun { header, sent }, None),
        }
    }

    /// Sends a small write of host memory at once.
    fn write_inline(&mut self, region: u64, offset: u64, source: SourceRange) {
        let data = source.piece();
        // SAFETY: the data is a range of a registered region, which `source` keeps.
        let checksum = self.checksums.then(|| unsafe { checksum::of(data) });
        let header =
            self.connection.outbound.seal(Frame::Write { region, offset, len: source.len, checksum });
        // SAFETY: the data is a range of a registered region, which `source` keeps.
        match unsafe { self.connection.try_send(&header, data, SendMode::NonBlockingMore) } {
            Sent::All => {
                self.connection.held.store(true, Ordering::Release);
                self.connection.wake();
            }
            Sent::Part(sent) => self.hand_over(Head::Begun { header, sent }, Some(source)),
            Sent::Nothing => {}
        }
    }
}

impl Queue for EthernetQueue {
    fn prepare(&mut self, route: RouteId, memories: Memories<'_>) -> CoreResult<()> {
        let (to, src) = memories.own::<PeerRegion, LocalRegion>().map_err(Error::from)?;
        to.check()?;
        // Updates are at offsets that are multiples of 8.
        if src.is_none() && to.misalignment() != 0 {
            return Err(CoreError::InvalidArgument(format!(
                "an update of a memory that starts {} bytes behind an 8-byte boundary would not be aligned",
                to.misalignment()
            )));
        }
        let source = src.map(|src| src.region().clone());
        self.routes.insert(route, EthernetRoute { to: to.clone(), source });
        Ok(())
    }

    fn release(&mut self, route: RouteId) {
        // Works keep the memory that they still need.
        self.routes.remove(route);
    }

    unsafe fn submit(&mut self, batch: &[Operation]) -> CoreResult<usize> {
        let mut result = Ok(());
        let mut taken = 0;
        while taken < batch.len() && !self.is_full() {
            result = self.start(batch[taken]);
            if result.is_err() {
                break;
            }
            taken += 1;
        }
        if !self.handed_over.is_empty() {
            self.connection.backlog.lock().extend(self.handed_over.drain(..));
            self.connection.wake();
        }
        match result {
            Err(error) if taken == 0 => Err(error),
            _ => Ok(taken),
        }
    }

    fn progress(&mut self) -> CoreResult<u64> {
        while let Some((due, works)) = self.flushes.front()
            && self.connection.done.load(Ordering::Acquire) >= *works
            && !self.connection.is_broken()
        {
            match self.answers.next(&self.connection) {
                Ok(Some(ticket)) if ticket == *due => {
                    self.completed = ticket;
                    self.flushes.pop_front();
                }
                Ok(Some(_)) => self.connection.fail("it answered a flush that was not requested".to_owned()),
                Ok(None) => break,
                Err(reason) => self.connection.fail(reason),
            }
        }
        Ok(self.completed)
    }
}

impl Answers {
    /// The ticket of the next answer, if one has come. If there can be none, the error is the reason.
    fn next(&mut self, connection: &SendConnection) -> Result<Option<u64>, String> {
        while self.filled < HEADER {
            let room = Piece::of_mut(&mut self.bytes[self.filled..]);
            // SAFETY: the rest of the buffer is this value's own.
            match unsafe { socket::receive(&connection.stream, &[room], false) } {
                Ok(0) => return Err("it ended the connection".to_owned()),
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if socket::is_not_now(&error) => {}
                Err(error) => return Err(format!("receiving from it failed: {error}")),
            }
        }
        let mut header = [0; HEADER];
        header.copy_from_slice(&self.bytes[..HEADER]);
        self.bytes.copy_within(HEADER..self.filled, 0);
        self.filled -= HEADER;
        match Frame::open(&mut self.inbound, &header) {
            Ok(Frame::Complete { ticket }) => Ok(Some(ticket)),
            Ok(_) => Err("it sent a message that is not an answer".to_owned()),
            Err(fault) => Err(fault.to_string()),
        }
    }
}

impl Drop for EthernetQueue {
    /// Returns at once: the driver carries out the works that were handed over, and ends.
    fn drop(&mut self) {
        self.connection.closing.store(true, Ordering::Release);
        self.connection.wake();
    }
}
