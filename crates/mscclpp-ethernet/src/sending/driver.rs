//! The thread that sends everything that the owner of a queue does not send itself.

use std::{
    collections::VecDeque,
    io,
    net::Shutdown,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use mscclpp_core::Error as CoreError;
use mscclpp_net::links::header::HEADER;
use mscclpp_os::waiting::Backoff;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    checksum,
    frame::Frame,
    link_state::Carrier,
    socket::{self, MAX_PIECES, Piece, SendMode},
    staging::{self, Staging},
};

use super::connection::{BACKLOG, Head, SendConnection, SourceRange, Work};

/// The most bytes of data behind one header.
const MAX_FRAME: u64 = 1 << 20;
/// The smallest part of device memory that is sent by itself: smaller ones cost more to handle than they gain.
const SMALLEST_PART: u64 = 64 << 10;
/// The number of frames that are prepared ahead of the one that is being sent.
const AHEAD: usize = 16;
/// The most frames that go to the system in one call, and about how many bytes.
const MAX_GATHERED: usize = MAX_PIECES / 2;
const GATHERED_BYTES: usize = 256 << 10;
/// The time after which waits check whether they still make sense.
pub(super) const LOOK: Duration = Duration::from_millis(200);
/// The time after which an idle driver checks whether the connection still exists.
const IDLE_LOOK: Duration = Duration::from_secs(1);
/// The time without progress after which a dropped queue is given up.
const STUCK: Duration = Duration::from_secs(10);
/// The longest time that a dropped queue waits for the peer to receive everything.
const DRAIN: Duration = Duration::from_secs(5);

pub(super) struct Driver {
    connection: Arc<SendConnection>,
    /// The works taken from the backlog.
    works: VecDeque<Work>,
    /// The number of bytes of the first work, if it is a write, that were cut into frames.
    cut: u64,
    frames: VecDeque<Prepared>,
    stagings: Vec<Staging>,
}

/// A frame to be sent.
struct Prepared {
    head: Head,
    data: Data,
    /// Whether it is the last frame of its work.
    last: bool,
}

enum Data {
    None,
    Host(SourceRange),
    Chunk { staging: usize, chunk: usize, len: usize },
}

/// The reason why a driver ends before its queue does.
enum Stop {
    /// The connection has failed, or the link has ended.
    Broken,
    Io(io::Error),
    /// The peer has closed its end.
    Ended,
    Device(mscclpp_gpu::Error),
}

impl From<mscclpp_gpu::Error> for Stop {
    fn from(error: mscclpp_gpu::Error) -> Self {
        Self::Device(error)
    }
}

impl Driver {
    pub(super) fn new(connection: Arc<SendConnection>) -> Self {
        Self {
            connection,
            works: VecDeque::with_capacity(BACKLOG),
            cut: 0,
            frames: VecDeque::with_capacity(AHEAD),
            stagings: Vec::new(),
        }
    }

    pub(super) fn run(mut self) {
        match self.drive() {
            Ok(()) => self.close_gently(),
            Err(Stop::Broken) => self.connection.cut(),
            Err(Stop::Io(error)) => self.connection.fail(format!("sending to it failed: {error}")),
            Err(Stop::Ended) => self.connection.fail("it ended the connection".to_owned()),
            Err(Stop::Device(error)) => {
                self.connection.cut();
                self.connection.link.fail(CoreError::Gpu(error));
            }
        }
        // Works that were not sent are dropped.
        self.connection.backlog.lock().clear();
    }

    fn drive(&mut self) -> Result<(), Stop> {
        loop {
            self.prepare()?;
            if self.frames.is_empty() {
                if !self.rest()? {
                    // The goodbye comes last: without it, the peer takes the end of the stream for a failure.
                    let goodbye = self.connection.outbound.seal(Frame::Goodbye);
                    return self.send_pieces(&mut [Piece::of(&goodbye)]);
                }
                continue;
            }
            self.await_first()?;
            let count = self.ready()?;
            self.send(count)?;
        }
    }

    /// Takes works and cuts them into frames, until enough are prepared. Copies from devices begin here.
    fn prepare(&mut self) -> Result<(), Stop> {
        while self.frames.len() < AHEAD {
            if self.works.is_empty() {
                let mut backlog = self.connection.backlog.lock();
                std::mem::swap(&mut self.works, &mut backlog);
            }
            let Some(Work { head, source }) = self.works.front() else { return Ok(()) };
            let prepared = match (*head, source.clone()) {
                // A write that has not begun is cut.
                (Head::Frame { frame: Frame::Write { region, offset, .. }, checksum }, Some(source)) => {
                    let at = self.cut;
                    let Some((len, data)) = self.cut_off(&source, at)? else { return Ok(()) };
                    self.cut = at + len;
                    let frame = Frame::Write { region, offset: offset + at, len, checksum: None };
                    Prepared { head: Head::Frame { frame, checksum }, data, last: self.cut == source.len }
                }
                (head, source) => Prepared { head, data: source.map_or(Data::None, Data::Host), last: true },
            };
            if prepared.last {
                self.works.pop_front();
                self.cut = 0;
            }
            self.frames.push_back(prepared);
        }
        Ok(())
    }

    /// The length and data of a source's next frame; none while all chunks are in use.
    fn cut_off(&mut self, source: &SourceRange, at: u64) -> Result<Option<(u64, Data)>, Stop> {
        let left = source.len - at;
        let Some(gpu) = source.region.gpu() else {
            let len = left.min(MAX_FRAME);
            return Ok(Some((len, Data::Host(source.part(at, len)))));
        };
        let staging = staging::number_of(&mut self.stagings, gpu, &self.connection.settings)?;
        let known = &self.stagings[staging];
        let len = left.min(part_of(source.len, known.size()));
        let in_use = self.frames.iter().filter(
            |f| matches!(f.data, Data::Chunk { staging: s, chunk, .. } if s == staging && known.serves(chunk, len)),
        );
        if in_use.count() == known.count(len) {
            return Ok(None);
        }
        let chunk = self.stagings[staging].turn(len);
        // SAFETY: a range of a registered region, which the core has checked. Chunks of a kind are used in turn, and one of
        // them is in no prepared frame, so it is this one: its former data has been sent, and so was copied before.
        unsafe { self.stagings[staging].fetch(chunk, &source.region, source.address.add(at), len)? };
        Ok(Some((len, Data::Chunk { staging, chunk, len: len as usize })))
    }

    fn is_ready(&self, frame: &Prepared) -> Result<bool, Stop> {
        match frame.data {
            Data::Chunk { staging, chunk, .. } => Ok(self.stagings[staging].is_copied(chunk)?),
            _ => Ok(true),
        }
    }

    fn await_first(&mut self) -> Result<(), Stop> {
        let mut backoff = Backoff::default();
        while let Some(first) = self.frames.front()
            && !self.is_ready(first)?
        {
            self.check()?;
            backoff.wait();
        }
        // An update may have been handed over meanwhile, and can be sent along.
        self.prepare()
    }

    /// The number of prepared frames that go into one call: those that are ready, until their bytes suffice.
    fn ready(&self) -> Result<usize, Stop> {
        let (mut count, mut bytes) = (0, 0);
        for frame in self.frames.iter().take(MAX_GATHERED) {
            if bytes >= GATHERED_BYTES || (count > 0 && !self.is_ready(frame)?) {
                break;
            }
            count += 1;
            bytes += self.piece(frame)?.len;
        }
        Ok(count)
    }

    fn piece(&self, frame: &Prepared) -> Result<Piece, Stop> {
        Ok(match &frame.data {
            Data::None => Piece::NONE,
            Data::Host(source) => source.piece(),
            Data::Chunk { staging, chunk, len } => self.stagings[*staging].piece(*chunk, *len)?,
        })
    }

    /// Sends the first `count` frames.
    fn send(&mut self, count: usize) -> Result<(), Stop> {
        let mut headers = [[0; HEADER]; MAX_GATHERED];
        let mut pieces = [Piece::NONE; MAX_PIECES];
        for (i, frame) in self.frames.iter().take(count).enumerate() {
            let data = self.piece(frame)?;
            let mut sent = 0;
            headers[i] = match frame.head {
                Head::Begun { header, sent: so_far } => {
                    sent = so_far;
                    header
                }
                Head::Frame { frame, checksum } => {
                    self.connection.outbound.seal(with_checksum(frame, checksum, data))
                }
            };
            pieces[2 * i] = Piece::of(&headers[i]).after(sent.min(HEADER));
            pieces[2 * i + 1] = data.after(sent.saturating_sub(HEADER));
        }
        self.connection.held.store(false, Ordering::Relaxed);
        self.send_pieces(&mut pieces[..2 * count])?;
        let finished = self.frames.drain(..count).filter(|frame| frame.last).count() as u64;
        if self.frames.is_empty() {
            for staging in &mut self.stagings {
                // All copies are complete, so this releases their sources.
                staging.is_idle()?;
            }
        }
        // This store comes last: from here on the owner may send (invariant 1).
        self.connection.done.fetch_add(finished, Ordering::Release);
        Ok(())
    }

    fn send_pieces(&self, mut pieces: &mut [Piece]) -> Result<(), Stop> {
        let mut progress = Instant::now();
        while let Some(first) = pieces.iter().position(|piece| piece.len > 0) {
            pieces = &mut pieces[first..];
            // SAFETY: the pieces are headers of `send`, host memory that the frames keep, and chunks that no copy uses.
            let mut count = match unsafe { socket::send(&self.connection.stream, pieces, SendMode::Blocking) }
            {
                Ok(count) => count,
                Err(error) if socket::is_not_now(&error) => {
                    self.check()?;
                    if socket::has_ended(&self.connection.stream) {
                        return Err(Stop::Ended);
                    }
                    if self.connection.closing.load(Ordering::Acquire) && progress.elapsed() > STUCK {
                        return Err(Stop::Io(io::ErrorKind::TimedOut.into()));
                    }
                    continue;
                }
                Err(error) => return Err(Stop::Io(error)),
            };
            progress = Instant::now();
            for piece in &mut *pieces {
                let taken = count.min(piece.len);
                *piece = piece.after(taken);
                count -= taken;
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Stop> {
        match self.connection.is_broken() || self.connection.link.has_failed() {
            true => Err(Stop::Broken),
            false => Ok(()),
        }
    }

    /// Waits for something to do. Returns false once the queue is dropped and everything is sent.
    fn rest(&self) -> Result<bool, Stop> {
        let busy = self.connection.settings.busy;
        let mut looked = Instant::now();
        let mut began: Option<Instant> = None;
        loop {
            // This is loaded before the backlog, so that works handed over before the queue was dropped are seen.
            let closing = self.connection.closing.load(Ordering::Acquire);
            if self.connection.held.swap(false, Ordering::Acquire) {
                socket::push(&self.connection.stream);
            }
            if !self.connection.backlog.lock().is_empty() {
                return Ok(true);
            }
            self.check()?;
            if closing {
                return Ok(false);
            }
            if !busy.is_zero() && began.get_or_insert_with(Instant::now).elapsed() < busy {
                std::hint::spin_loop();
            } else {
                // A wake-up that came before this returns at once. The limit is for links that fail without a wake-up, and for
                // connections that end while nothing is sent: the peer may be waiting for the next data.
                std::thread::park_timeout(IDLE_LOOK);
                began = None;
                if looked.elapsed() >= IDLE_LOOK {
                    looked = Instant::now();
                    if socket::has_ended(&self.connection.stream) {
                        return Err(Stop::Ended);
                    }
                }
            }
        }
    }

    /// Shuts sending down, and waits until the peer has received everything: closing a socket with unread answers would cut
    /// off data that is on its way.
    fn close_gently(&self) {
        let stream = &self.connection.stream;
        let deadline = Instant::now() + DRAIN;
        let mut answers = [0; 256];
        let mut open = stream.shutdown(Shutdown::Write).is_ok();
        while open && Instant::now() < deadline {
            // SAFETY: the array is this thread's own.
            open = match unsafe { socket::receive(stream, &[Piece::of_mut(&mut answers)], false) } {
                Ok(count) => count > 0,
                Err(error) if socket::is_not_now(&error) => {
                    let _ = poll(
                        &mut [PollFd::new(stream, PollFlags::IN)],
                        Timespec::try_from(LOOK).ok().as_ref(),
                    );
                    true
                }
                // The peer had not received everything.
                Err(error) => {
                    self.connection.fail(format!("it may not have received everything: {error}"));
                    false
                }
            };
        }
    }
}

/// The size of the parts into which a write of device memory is cut. Even a write that would fit one chunk is cut into
/// a few, so that the first part is sent while the others are copied.
fn part_of(len: u64, chunk: u64) -> u64 {
    (len / 4).max(SMALLEST_PART).next_multiple_of(4096).min(chunk)
}

fn with_checksum(frame: Frame, wanted: bool, data: Piece) -> Frame {
    match frame {
        Frame::Write { region, offset, len, .. } if wanted => {
            // SAFETY: the frame keeps its data.
            Frame::Write { region, offset, len, checksum: Some(unsafe { checksum::of(data) }) }
        }
        frame => frame,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_few_and_fit_a_chunk() {
        const MIB: u64 = 1 << 20;
        let cases = [(1, 65_536), (MIB, MIB / 4), (MIB + 1, MIB / 4), (64 * MIB, MIB), (u64::MAX / 2, MIB)];
        for (len, part) in cases {
            assert_eq!(part_of(len, MIB), part, "{len} bytes");
        }
        assert_eq!(part_of(MIB, 16 << 10), 16 << 10);
    }
}
