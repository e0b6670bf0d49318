use std::{
    collections::VecDeque,
    io,
    sync::{Arc, atomic::Ordering},
};

use crc32fast::Hasher;
use mscclpp_core::{
    Error as CoreError, MemoryRegion, Result as CoreResult,
    provider::{Queue, Registration, RemoteRegion},
};

use crate::{
    error::{Error, Result, SystemCall},
    hub::{LinkState, Shared},
    placement,
    protocol::{
        frame::{Frame, HEADER, Inbound, Outbound},
        handshake::Session,
    },
    region::{LocalRegion, PeerRegion},
    socket::{self, Manner, Piece},
};

use super::{
    driver::{Driver, LOOK},
    lane::{BACKLOG, Lane, Sent, Source, Work},
};

/// Up to so many bytes of host memory are sent by the owner itself; more are handed over.
const INLINE: u64 = 32 << 10;
/// How many operations may wait to be sent, unless the endpoint says otherwise.
const MAX_WAITING: u64 = 1 << 20;

/// Opens a queue over a connection that has been shaken hands on.
pub(crate) fn open(
    stream: std::net::TcpStream,
    session: Session,
    link: &Arc<LinkState>,
    hub: &Arc<Shared>,
    max_waiting: i32,
) -> Result<Box<dyn Queue>> {
    // The driver waits in the call that sends; the owner says each time that it does not.
    stream.set_nonblocking(false).during("making a socket block")?;
    stream.set_write_timeout(Some(LOOK)).during("setting up a socket")?;
    let outbound = Outbound::new(session.initiator);
    let lane = Arc::new(Lane::new(stream, outbound, link.clone(), hub.clone()));
    let driver = Driver::new(lane.clone());
    let thread = std::thread::Builder::new()
        .name("mscclpp-eth-out".to_owned())
        .spawn(move || driver.run())
        .during("starting the thread that helps a queue to send")?;
    lane.is_driven_by(thread.thread().clone());
    link.carries(&lane);
    Ok(Box::new(EthernetQueue {
        answers: Answers { inbound: Inbound::new(session.responder), bytes: [0; 16 * HEADER], filled: 0 },
        checksums: hub.settings().checksums,
        max_waiting: u64::try_from(max_waiting).ok().filter(|max| *max > 0).unwrap_or(MAX_WAITING),
        lane,
        given: 0,
        operations: 0,
        flushed: 0,
        requested: 0,
        completed: 0,
        leaves_after: VecDeque::with_capacity(BACKLOG),
    }))
}

struct EthernetQueue {
    lane: Arc<Lane>,
    answers: Answers,
    checksums: bool,
    max_waiting: u64,
    /// Works handed over.
    given: u64,
    /// Operations so far, and before the last ticket.
    operations: u64,
    flushed: u64,
    requested: u64,
    completed: u64,
    /// For each ticket that was requested and is not completed: how many works the driver must have carried out before
    /// its flush has left. Until then nothing need be asked of the system.
    leaves_after: VecDeque<u64>,
}

/// What the peer says on the same connection.
struct Answers {
    inbound: Inbound,
    bytes: [u8; 16 * HEADER],
    filled: usize,
}

impl EthernetQueue {
    /// Whether the owner may send itself (invariant 1).
    fn is_caught_up(&self) -> bool {
        self.lane.done.load(Ordering::Acquire) == self.given
    }

    fn hand_over(&mut self, work: Work) {
        self.given += 1;
        self.lane.backlog.lock().push_back(work);
        self.lane.wake();
    }

    /// Whether there is room for another operation. There always is for a flush, of which there is at most one for each
    /// operation.
    fn admit(&self) -> Result<()> {
        match self.given - self.lane.done.load(Ordering::Acquire) < self.max_waiting {
            true => Ok(()),
            false => Err(Error::Backlog { limit: self.max_waiting }),
        }
    }

    fn control(&mut self, frame: Frame) {
        if !self.is_caught_up() {
            return self.hand_over(Work::Control(frame));
        }
        let header = self.lane.outbound.seal(frame);
        // What is held back leaves with this.
        self.lane.held.store(false, Ordering::Relaxed);
        // SAFETY: no data.
        match unsafe { self.lane.try_send(&header, Piece::NONE, Manner::AtOnce) } {
            Sent::All | Sent::Nothing => {}
            Sent::Part(sent) => self.hand_over(Work::Rest { header, sent, source: None }),
        }
    }

    /// Sends a small write of host memory at once.
    fn write_inline(&mut self, region: u64, offset: u64, source: Source) {
        let data = source.piece();
        let checksum = self.checksums.then(|| {
            let mut hasher = Hasher::new();
            // SAFETY: a range of a registered region, which `source` keeps.
            unsafe { placement::digest(&mut hasher, data.start, data.len) };
            hasher.finalize()
        });
        let header = self.lane.outbound.seal(Frame::Write { region, offset, len: source.len, checksum });
        // SAFETY: as above.
        match unsafe { self.lane.try_send(&header, data, Manner::WithMoreToCome) } {
            Sent::All => {
                self.lane.held.store(true, Ordering::Release);
                self.lane.wake();
            }
            Sent::Part(sent) => self.hand_over(Work::Rest { header, sent, source: Some(source) }),
            Sent::Nothing => {}
        }
    }
}

impl Queue for EthernetQueue {
    fn write(
        &mut self,
        dst: &Arc<dyn RemoteRegion>,
        dst_offset: u64,
        src: &Arc<dyn Registration>,
        src_offset: u64,
        len: u64,
    ) -> CoreResult<()> {
        let to = PeerRegion::of(&**dst)?;
        let from: &Arc<MemoryRegion> = LocalRegion::of(&**src)?.region();
        to.check()?;
        self.admit()?;
        self.operations += 1;
        // The link is about to say why, if it has not already.
        if len == 0 || self.lane.is_broken() {
            return Ok(());
        }
        let source = Source { region: from.clone(), address: from.ptr().add(src_offset), len };
        let (region, offset, checksum) = (to.id(), dst_offset, self.checksums);
        let inline = len <= INLINE && from.gpu().is_none() && self.is_caught_up();
        match inline {
            true => self.write_inline(region, offset, source),
            false => self.hand_over(Work::Write { region, offset, source, checksum }),
        }
        Ok(())
    }

    fn update(&mut self, dst: &Arc<dyn RemoteRegion>, dst_offset: u64, value: u64) -> CoreResult<()> {
        let to = PeerRegion::of(&**dst)?;
        to.check()?;
        if !(dst_offset + to.misalignment()).is_multiple_of(8) {
            return Err(CoreError::InvalidArgument(format!(
                "an update at offset {dst_offset} of a memory that starts {} bytes behind an 8-byte boundary would not \
                 be aligned",
                to.misalignment()
            )));
        }
        self.admit()?;
        self.operations += 1;
        if !self.lane.is_broken() {
            self.control(Frame::Update { region: to.id(), offset: dst_offset, value });
        }
        Ok(())
    }

    fn request_flush(&mut self) -> CoreResult<u64> {
        // So that flushes which time out and are repeated do not pile up.
        if self.flushed != self.operations {
            self.requested += 1;
            self.flushed = self.operations;
            // If it is broken this is never reached, and the link says why.
            if !self.lane.is_broken() {
                self.control(Frame::Flush { ticket: self.requested });
            }
            self.leaves_after.push_back(self.given);
        }
        Ok(self.requested)
    }

    fn progress(&mut self) -> CoreResult<u64> {
        while let Some(works) = self.leaves_after.front()
            && self.lane.done.load(Ordering::Acquire) >= *works
            && !self.lane.is_broken()
        {
            match self.answers.next(&self.lane) {
                Ok(Some(ticket)) if ticket == self.completed + 1 => {
                    self.completed = ticket;
                    self.leaves_after.pop_front();
                }
                Ok(Some(_)) => self.lane.fail("it answered what was not asked".to_owned()),
                Ok(None) => break,
                Err(reason) => self.lane.fail(reason),
            }
        }
        Ok(self.completed)
    }
}

impl Answers {
    /// The next answer, if one has come; an error in words if there will be none.
    fn next(&mut self, lane: &Lane) -> Result<Option<u64>, String> {
        while self.filled < HEADER {
            let room = Piece::of_mut(&mut self.bytes[self.filled..]);
            // SAFETY: the rest of the buffer.
            match unsafe { socket::receive(&lane.stream, &[room], false) } {
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
        match self.inbound.open(&header) {
            Ok(Frame::Complete { ticket }) => Ok(Some(ticket)),
            Ok(_) => Err("it sent what does not belong here".to_owned()),
            Err(fault) => Err(fault.to_string()),
        }
    }
}

impl Drop for EthernetQueue {
    /// Does not wait: the driver carries out what was given, and ends.
    fn drop(&mut self) {
        self.lane.closing.store(true, Ordering::Release);
        self.lane.wake();
    }
}
