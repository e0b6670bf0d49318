//! Calls of simulated devices on memory of the process, which their kernels cannot reach: they may use the
//! memory of devices only.

use mscclpp::{DevicePtr, Gpu, Platform, Stream, errors::GpuError};
use mscclpp_collectives::{Collectives, Error, Kind, Request, Selector};
use parking_lot::Mutex;

use crate::retired::{self, RetireOnDrop};

/// Enqueues requests. Memory that is not a device's is replaced by copies on the device. Returns the copies, which
/// the caller keeps until the stream is synchronised. If this fails, the copies are retired, because work in the
/// stream may use them.
///
/// # Safety
/// The requirements of [`Collectives::enqueue_with`], for memory of the process.
pub(crate) unsafe fn enqueue(
    collectives: &Collectives,
    requests: &[Request<'_>],
    stream: &Stream,
    selector: &dyn Selector,
) -> Result<Vec<RetireOnDrop>, Error> {
    let (mut copies, mut moved, mut written) = (Copies::default(), Vec::new(), Vec::new());
    for request in requests {
        let (given, taken) = sizes(request, collectives.rank(), collectives.n_ranks());
        // SAFETY: the caller's memory has at least the bytes that the call uses, and lives long enough.
        let [send, recv] = [(request.send, given), (request.recv, taken)]
            .map(|(at, bytes)| unsafe { copies.of(stream, at, bytes) });
        moved.push(Request { send: send?, recv: recv?, ..*request });
        written.push((request.recv, taken));
    }
    // SAFETY: the caller's promise; copies live until the stream is synchronised.
    unsafe { collectives.enqueue_with(&moved, stream, selector)? };
    // SAFETY: as above.
    Ok(unsafe { copies.back(stream, &written)? })
}

/// The copies that calls work on. Calls may still run when the object that keeps them is closed.
#[derive(Default)]
pub(crate) struct KeptCopies(Mutex<Vec<RetireOnDrop>>);

impl KeptCopies {
    pub(crate) fn keep(&self, copies: Vec<RetireOnDrop>) {
        self.0.lock().extend(copies);
    }

    /// Drops the copies if all work of the stream is complete; there is only one stream. Returns whether it is
    /// complete.
    pub(crate) fn forget_if_idle(&self, stream: &Stream) -> Result<bool, GpuError> {
        // Locked while the stream is asked: another thread may put work into the stream and then add its copies, and
        // that work is not complete.
        let mut copies = self.0.lock();
        let is_idle = stream.query()?;
        if is_idle && !copies.is_empty() {
            copies.clear();
            retired::sweep();
        }
        Ok(is_idle)
    }

    /// Drops the copies, because all work is complete.
    pub(crate) fn forget(&self) {
        self.0.lock().clear();
        retired::sweep();
    }
}

/// Copies of memory that is not a device's, for calls that read and write it, each with the address of the program's
/// memory.
#[derive(Default)]
pub(crate) struct Copies(Vec<(DevicePtr, RetireOnDrop)>);

impl Copies {
    /// Returns the address that the call uses for an address of the program: the same one if it is memory of a
    /// device, or else that of a copy. All arguments with one address that fit into one copy get the same.
    ///
    /// # Safety
    /// `at` is memory of the process with at least `bytes` bytes, which lives until the stream is synchronised.
    pub(crate) unsafe fn of(
        &mut self,
        stream: &Stream,
        at: DevicePtr,
        bytes: u64,
    ) -> Result<DevicePtr, GpuError> {
        if let Some(there) = self.find(at, bytes) {
            return Ok(there);
        }
        let Some(copy) = copy_of(stream.gpu(), at, bytes)? else { return Ok(at) };
        let there = copy.0.ptr();
        // SAFETY: the caller's memory; the copy is as large, and lives until the stream is synchronised.
        unsafe { stream.copy(there, at, bytes)? };
        self.0.push((at, copy));
        Ok(there)
    }

    /// Copies the bytes that the call has written back to the program's memory. Returns the copies, which the caller
    /// keeps until the stream is synchronised.
    ///
    /// # Safety
    /// The requirements of [`Copies::of`].
    pub(crate) unsafe fn back(
        self,
        stream: &Stream,
        written: &[(DevicePtr, u64)],
    ) -> Result<Vec<RetireOnDrop>, GpuError> {
        for (to, bytes) in written.iter().filter(|(_, bytes)| *bytes > 0) {
            if let Some(there) = self.find(*to, *bytes) {
                // SAFETY: the caller's memory, and a copy of at least as many bytes.
                unsafe { stream.copy(*to, there, *bytes)? };
            }
        }
        Ok(self.0.into_iter().map(|(_, copy)| copy).collect())
    }

    /// Returns the first copy of an address that has at least `bytes` bytes.
    fn find(&self, at: DevicePtr, bytes: u64) -> Option<DevicePtr> {
        let found = self.0.iter().find(|(of, copy)| *of == at && copy.0.len() >= bytes);
        found.map(|(_, copy)| copy.0.ptr())
    }
}

/// Allocates memory for a copy. Returns none if the address is memory of a device.
fn copy_of(gpu: &Gpu, at: DevicePtr, bytes: u64) -> Result<Option<RetireOnDrop>, GpuError> {
    if bytes == 0 || Platform::Sim.owner_of(at)?.is_some() {
        return Ok(None);
    }
    Ok(Some(RetireOnDrop(gpu.allocate(bytes)?)))
}

/// Returns how many bytes a rank sends, and how many it receives.
fn sizes(request: &Request<'_>, rank: usize, ranks: usize) -> (u64, u64) {
    let (count, ranks) = (request.count, ranks as u64);
    let at = |root: usize, count: u64| if root == rank { count } else { 0 };
    let (given, taken) = match request.kind {
        Kind::AllReduce(_) => (count, count),
        Kind::AllGather => (count, count * ranks),
        Kind::AllGatherV(counts) => (counts.get(rank).copied().unwrap_or(0), counts.iter().sum()),
        Kind::ReduceScatter(_) => (count * ranks, count),
        Kind::AllToAll => (count * ranks, count * ranks),
        Kind::AllToAllV { send, recv } => (send.iter().sum(), recv.iter().sum()),
        Kind::Broadcast { root } => (at(root, count), count),
        Kind::Reduce { root, .. } => (count, at(root, count)),
        Kind::Gather { root } => (count, at(root, count * ranks)),
        Kind::Scatter { root } => (at(root, count * ranks), count),
        Kind::Send { .. } => (count, 0),
        Kind::Recv { .. } => (0, count),
        _ => (0, 0),
    };
    (given * request.data_type.size(), taken * request.data_type.size())
}
