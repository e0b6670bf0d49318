use std::{fmt, io, ops::Range};

use crc32fast::Hasher;
use mscclpp_gpu::{DevicePtr, access};
use mscclpp_net::{
    links::header::{BadHeader, HEADER, Inbound, Outbound},
    socket::is_silence,
};
use mscclpp_os::waiting::Backoff;

use crate::{
    checksum,
    frame::{Fault, Frame},
    regions::{KnownRegions, Target},
    socket::Piece,
};

use super::{
    placer::{Interrupted, Placer},
    wire::Wire,
};

/// The size in bytes of the buffer in which headers and small data arrive.
const BUFFER: usize = 64 << 10;
/// The number of bytes that are read ahead after long data: room for a few headers and a little data.
const SMALL: usize = 4 << 10;

/// The receiver of one connection, which carries out its frames.
pub(crate) struct Receiver<W> {
    wire: W,
    inbound: Inbound,
    outbound: Outbound,
    // This is dropped before `regions`, which drops the claims for copies.
    placer: Placer,
    regions: KnownRegions,
    buffer: Box<[u8]>,
    /// The part of the buffer that has arrived and was not used yet.
    filled: Range<usize>,
    /// The number of bytes that are read at the beginning of a frame. After long data more of it is likely, most of which
    /// should be received directly into its place.
    ahead: usize,
}

/// How receiving ended, and why.
#[derive(Debug)]
pub(crate) enum End {
    /// The peer has sent everything, and a goodbye.
    Goodbye,
    /// This side has closed the connection.
    Closed,
    /// The stream ended without a goodbye.
    Cut(CutAt),
    /// The socket failed.
    Io(io::Error),
    /// A message that arrived cannot be accepted.
    Fault(Fault),
}

/// The place at which a stream ended too early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CutAt {
    BetweenFrames,
    Header,
    Data,
}

impl fmt::Display for CutAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BetweenFrames => "between two messages, and without a goodbye",
            Self::Header => "inside the header of a message",
            Self::Data => "inside the data of a write",
        })
    }
}

impl From<Fault> for End {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl<W: Wire> Receiver<W> {
    pub(crate) fn new(
        wire: W,
        inbound: Inbound,
        outbound: Outbound,
        regions: KnownRegions,
        placer: Placer,
    ) -> Self {
        let buffer = vec![0; BUFFER].into_boxed_slice();
        Self { wire, inbound, outbound, placer, regions, buffer, filled: 0..0, ahead: BUFFER }
    }

    #[cfg(any(fuzzing, test))]
    pub(super) fn wire_mut(&mut self) -> &mut W {
        &mut self.wire
    }

    /// Carries out frames as they arrive, until the end.
    pub(crate) fn run(&mut self) -> End {
        loop {
            match self.step() {
                Ok(()) => {}
                Err(_) if self.wire.is_closed() => return End::Closed,
                Err(end) => {
                    // The connection was cut because its region was withdrawn.
                    let cut = self.regions.claims().cut_for();
                    return cut.map_or(end, |region| Fault::Region { region }.into());
                }
            }
        }
    }

    fn step(&mut self) -> Result<(), End> {
        while self.filled.len() < HEADER {
            self.fill()?;
        }
        if self.regions.claims().is_awaited() {
            self.settle(0)?;
        }
        let mut header = [0; HEADER];
        header.copy_from_slice(&self.buffer[self.filled.start..][..HEADER]);
        self.filled.start += HEADER;
        match Frame::open(&mut self.inbound, &header)? {
            Frame::Write { region, offset, len, checksum } => {
                let target = self.regions.target(region, offset, len)?;
                self.ahead = if len >= BUFFER as u64 { SMALL } else { BUFFER };
                let intact = self.receive(&target, len, checksum)?;
                self.regions.done();
                match intact {
                    true => Ok(()),
                    false => Err(Fault::Checksum { region, offset }.into()),
                }
            }
            Frame::Update { region, offset, value } => {
                let target = self.regions.target(region, offset, 8)?;
                if !target.address.0.is_multiple_of(8) {
                    return Err(Fault::Unaligned { region, offset }.into());
                }
                if target.region.gpu().is_some() {
                    self.claim_copies(region)?;
                }
                let closed = || is_over(&self.wire, &self.regions);
                self.placer.update(&target, value, closed).map_err(|end| end_of(end, region))?;
                self.regions.done();
                Ok(())
            }
            Frame::Flush { ticket } => {
                self.settle(0)?;
                let answer = self.outbound.seal(Frame::Complete { ticket });
                match self.wire.send(&answer) {
                    // The system reports this error once, so it must be kept.
                    Err(error) if is_silence(&error) => Err(error.into()),
                    // A peer that does not wait for the answer may have ended with a goodbye, which is still to be read. If it
                    // did not, the end of the stream will show it.
                    _ => Ok(()),
                }
            }
            Frame::Goodbye => Err(End::Goodbye),
            Frame::Complete { .. } => Err(Fault::Header(BadHeader::Kind { kind: header[0] }).into()),
        }
    }

    /// Receives more bytes into the buffer.
    fn fill(&mut self) -> Result<(), End> {
        if self.filled.is_empty() {
            self.filled = 0..0;
        } else if self.filled.end == self.buffer.len() {
            // Less than a header is left, so few bytes move.
            let len = self.filled.len();
            self.buffer.copy_within(self.filled.clone(), 0);
            self.filled = 0..len;
        }
        let at = if self.filled.is_empty() { CutAt::BetweenFrames } else { CutAt::Header };
        let end = BUFFER.min(self.filled.end + self.ahead);
        let count = self.receive_into(Piece::NONE, self.filled.end..end, at)?;
        self.filled.end += count;
        Ok(())
    }

    /// Receives into `first`, and whatever comes after it into a part of the buffer. `at` is the place of the cut if the
    /// stream ends here.
    fn receive_into(&mut self, first: Piece, part: Range<usize>, at: CutAt) -> Result<usize, End> {
        let Self { wire, placer, regions, buffer, .. } = self;
        // Bytes that came before the connection was cut could still be received.
        if regions.claims().cut_for().is_some() {
            return Err(End::Closed);
        }
        let mut backoff = Backoff::default();
        let mut idle = || {
            let waits = !placer.is_idle();
            if waits {
                backoff.wait();
            } else {
                // The claims end before this thread sleeps, so that nobody waits for claims whose copies are complete.
                regions.claims().unclaim_copies();
            }
            waits
        };
        let pieces = [first, Piece::of_mut(&mut buffer[part])];
        // SAFETY: `first` is empty, or a checked range of host memory that is claimed (and so is not freed before this
        // returns), or a chunk that no copy uses; the buffer is this value's own.
        match unsafe { wire.receive(&pieces, &mut idle)? } {
            0 => Err(End::Cut(at)),
            count => Ok(count),
        }
    }

    /// Receives the `len` bytes that follow into the target. Returns false if their checksum is wrong.
    fn receive(&mut self, target: &Target, len: u64, checksum: Option<u32>) -> Result<bool, End> {
        let mut hasher = checksum.map(|_| Hasher::new());
        match target.region.gpu().cloned() {
            None => {
                let whole = Piece { start: target.address.as_mut_ptr(), len: len as usize };
                self.receive_piece(whole)?;
                digest(hasher.as_mut(), whole);
            }
            Some(gpu) => {
                let mut at = 0;
                while at < len {
                    let closed = || is_over(&self.wire, &self.regions);
                    let fault = |end| end_of(end, target.region.id());
                    let slot = self.placer.slot(&gpu, len - at, closed).map_err(fault)?;
                    let piece = self.placer.piece(slot, len - at).map_err(|e| fault(e.into()))?;
                    self.receive_piece(piece)?;
                    digest(hasher.as_mut(), piece);
                    let count = piece.len as u64;
                    self.claim_copies(target.region.id())?;
                    self.placer.store(slot, target, at, count).map_err(|e| fault(e.into()))?;
                    at += count;
                }
            }
        }
        Ok(hasher.map(Hasher::finalize) == checksum)
    }

    /// Fills a piece of memory with bytes that have arrived, and receives the rest.
    fn receive_piece(&mut self, piece: Piece) -> Result<(), End> {
        let there = self.filled.len().min(piece.len);
        let come = &self.buffer[self.filled.start..][..there];
        // SAFETY: the piece is a checked range of host memory that is claimed, or a chunk that no copy uses.
        unsafe { access::write(DevicePtr::from_ptr(piece.start), come) };
        self.filled.start += there;
        let mut rest = piece.after(there);
        while rest.len > 0 {
            // The buffer is empty; otherwise nothing of the piece would be left.
            let count = self.receive_into(rest, 0..self.ahead, CutAt::Data)?;
            let direct = count.min(rest.len);
            rest = rest.after(direct);
            self.filled = 0..count - direct;
        }
        Ok(())
    }

    /// Claims the current frame's region for copies to its device.
    fn claim_copies(&mut self, region: u64) -> Result<(), End> {
        if self.regions.claims().must_settle(region) {
            self.settle(region)?;
        }
        self.regions.claims().claim_copies(region);
        Ok(())
    }

    /// Waits until all copies are complete.
    fn settle(&mut self, region: u64) -> Result<(), End> {
        let closed = || is_over(&self.wire, &self.regions);
        self.placer.settle(None, closed).map_err(|end| end_of(end, region))?;
        self.regions.claims().unclaim_copies();
        Ok(())
    }
}

/// Whether waiting no longer makes sense, because the connection was closed or cut.
fn is_over(wire: &impl Wire, regions: &KnownRegions) -> bool {
    wire.is_closed() || regions.claims().cut_for().is_some()
}

fn digest(hasher: Option<&mut Hasher>, piece: Piece) {
    if let Some(hasher) = hasher {
        // SAFETY: the piece was just filled, so it is readable.
        unsafe { checksum::add(hasher, piece) };
    }
}

fn end_of(end: Interrupted, region: u64) -> End {
    match end {
        Interrupted::Closed => End::Closed,
        Interrupted::Device(error) => {
            tracing::error!(target: "mscclpp::conn", %error, "a device failed to take what a peer sent");
            End::Fault(Fault::Device { region })
        }
    }
}
