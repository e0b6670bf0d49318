//! Memory that ranks register together, so that peers write into it.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use mscclpp::{
    DeviceBuffer, DevicePtr, MemoryChannel, Platform, RegisteredMemory, Stream, Transport,
    gpu::{KernelArgument, Owner},
};
use parking_lot::{Mutex, RwLock};

use crate::{
    Collectives, Error, Result,
    calls::{Mapped, Reach},
    engines::Places,
    group::{Group, Purpose},
    handle::{MAX_RANKS, Segment},
    plan::Plan,
};

/// Receive memory that is registered with [`Collectives::register`].
///
/// When it is dropped, calls of this rank do not use it any more: what comes into this memory is copied out of the scratch, as
/// into any other. Of [symmetric](Collectives::register_symmetric) memory all ranks drop theirs between the same calls. The memory
/// itself is freed when all ranks have dropped theirs and the ranks register something or deregister, or with the collectives.
#[must_use = "calls use the memory until this is dropped"]
pub struct Registered {
    memory: Arc<Memory>,
}

/// What is registered, in the order of the calls, and so alike on all ranks.
#[derive(Default)]
pub(crate) struct Registrations {
    list: RwLock<List>,
    /// Held while ranks exchange something.
    turn: Mutex<()>,
}

#[derive(Default)]
struct List {
    next: u64,
    all: Vec<Arc<Memory>>,
    /// All of them, for launches.
    owner: Arc<Vec<Owner>>,
}

struct Memory {
    id: u64,
    dropped: AtomicBool,
    at: DevicePtr,
    len: u64,
    /// Where each peer has mapped it.
    at_peers: [DevicePtr; MAX_RANKS],
    /// If it is symmetric.
    symmetric: Option<Symmetric>,
    /// It, and what the peers have registered with it, as mapped here.
    owner: Owner,
}

/// Of symmetric memory.
struct Symmetric {
    /// Where the memory of each peer is mapped here.
    peers: [DevicePtr; MAX_RANKS],
    /// The length of the shortest.
    least: u64,
    /// See [`Places::aside`].
    aside: Option<Stream>,
}

impl Collectives {
    /// Registers `buffer` on all ranks together, so that peers may write into it. Every rank makes this call, in the same
    /// order as all others, with a buffer of its own; lengths may differ. It blocks until all do.
    ///
    /// Nothing need be registered: it makes large calls faster that move and do not reduce, and that take what comes in
    /// registered memory. What comes is then not copied out of the scratch. Between two H100, an `all_gather` of 64 MiB takes 105 us for 111. A
    /// call finds its memory by itself, at any offset. Where that does not lie in registered memory whole, is none of a
    /// multiple of 16 bytes for each peer, or overlaps what the same call sends, this rank takes what comes as ever,
    /// whatever the other ranks do. Such calls wait a little longer than without any registration: so register the receive
    /// memory of all large calls, or none.
    ///
    /// A captured call uses what is registered when it is captured, and its graph keeps that.
    ///
    /// ```
    /// # #[cfg(feature = "cuda-ipc")]
    /// # fn main() -> Result<(), mscclpp_collectives::Error> {
    /// # use std::sync::Arc;
    /// # use mscclpp::prelude::*;
    /// # use mscclpp_collectives::{Collectives, DeviceSlice};
    /// # let ranks = LocalBootstrap::group(2).into_iter().map(|bootstrap| std::thread::spawn(move || -> Result<(), mscclpp_collectives::Error> {
    /// # let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(Platform::Host));
    /// # let rank = comm.bootstrap().rank();
    /// # let gpu = comm.context().gpu(rank)?;
    /// # let collectives = Collectives::new(&comm, &gpu)?;
    /// # let stream = gpu.stream()?;
    /// let all = DeviceSlice::<f32>::new(&gpu.allocate(1 << 20)?)?;
    /// let registered = collectives.register(all.buffer())?;
    ///
    /// let part = all.len() / collectives.n_ranks();
    /// let own = all.slice(rank * part..(rank + 1) * part)?;
    /// own.write(&vec![rank as f32; part])?;
    /// collectives.all_gather(&own, &all, &stream)?; // in place
    /// collectives.synchronize(&stream)?;
    /// assert_eq!(all.read()?[part..], vec![1.0; part]);
    ///
    /// collectives.deregister(registered)?;
    /// # comm.bootstrap().barrier()?;
    /// # Ok(())
    /// # }));
    /// # for rank in ranks.collect::<Vec<_>>() { rank.join().expect("a rank panicked")?; }
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "cuda-ipc"))]
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for memory of another device, and while a stream is being captured into which calls were
    /// put: register before the capture. (Of streams that [other code made](mscclpp::Stream::from_raw) it is not known.) [`Error::Below`] if the memory cannot be shared or mapped. If one rank fails, all do.
    pub fn register(&self, buffer: &DeviceBuffer) -> Result<Registered> {
        self.register_buffer(buffer, false)
    }

    /// As [`Collectives::register`], of memory that is *symmetric*: in each `all_gather` and `all_to_all` that takes what comes
    /// in this memory, all ranks give the same offset in what they have registered together. If one of them sends from it, too, all
    /// do, from the same offset.
    ///
    /// So a rank knows without asking where the others take what it sends, and the largest calls go by the copy engines of the
    /// devices ([`Way::Engines`](crate::Way::Engines)), which reach more of the link than kernels do and leave the multiprocessors to
    /// others. If ranks do not keep to it, what they send lies in the wrong place of this memory, or they wait for ever. If a rank
    /// aborts, its time is up, or it has lost another, it still writes what its calls send: into this memory of ranks that have not
    /// come to these calls, too. So nobody uses what it has there after another rank has given up, which it may not know yet.
    ///
    /// # Errors
    /// As there. [`Error::InvalidArgument`] if another rank calls [`Collectives::register`].
    pub fn register_symmetric(&self, buffer: &DeviceBuffer) -> Result<Registered> {
        self.register_buffer(buffer, true)
    }

    fn register_buffer(&self, buffer: &DeviceBuffer, symmetric: bool) -> Result<Registered> {
        self.register_with((buffer.ptr(), buffer.len()), symmetric, buffer.owner(), || {
            self.expect_here([buffer])?;
            Ok(self.inner.comm.register_buffer(buffer, Transport::CUDA_IPC)?)
        })
    }

    /// As [`Collectives::register`], or [`Collectives::register_symmetric`], for `bytes` bytes of device memory by their address,
    /// for bindings.
    ///
    /// # Safety
    /// They are memory of this rank's device, and stay it until all ranks have deregistered them, and calls and graphs that
    /// were made meanwhile are gone.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn register_memory(
        &self,
        memory: DevicePtr,
        bytes: u64,
        symmetric: bool,
    ) -> Result<Registered> {
        self.register_with((memory, bytes), symmetric, None, || {
            // SAFETY: the caller's promise.
            Ok(unsafe { self.inner.comm.register_memory(memory, bytes, Transport::CUDA_IPC)? })
        })
    }

    fn register_with(
        &self,
        (at, len): (DevicePtr, u64),
        symmetric: bool,
        owner: Option<Owner>,
        register: impl FnOnce() -> Result<RegisteredMemory>,
    ) -> Result<Registered> {
        let inner = &*self.inner;
        let registrations = &inner.registrations;
        let _turn = registrations.turn.lock();
        let group = &inner.group.telling(Purpose::Register);
        let own = self.can_register("register").and_then(|()| match &inner.reach {
            Reach::Memory(_) => register().map(Some),
            Reach::Ports(_) | Reach::Hosts(_) => Ok(None),
        });
        let own = group.all_have("register", own)?;
        let all = group.all_gather([symmetric.into(), len])?;
        if let Some(other) = all.iter().position(|[theirs, _]| *theirs != u64::from(symmetric)) {
            return Err(Error::InvalidArgument(format!(
                "rank {} registers memory as symmetric, and rank {} does not, or the other way round",
                self.rank(),
                inner.group.ranks[other]
            )));
        }
        registrations.free_dropped(group)?;
        let (at_peers, peers, owners) = match (&own, &inner.reach) {
            (Some(own), Reach::Memory(mapped)) => self.exchange_memory(group, own, mapped)?,
            // Nobody writes into it.
            _ => ([DevicePtr::NULL; MAX_RANKS], [DevicePtr::NULL; MAX_RANKS], Vec::new()),
        };
        let least = all.iter().fold(len, |least, [_, len]| least.min(*len));
        let aside = if inner.gpu.platform() == Platform::Host { None } else { Some(inner.gpu.stream()) };
        let aside = group.all_have("register", aside.transpose().map_err(Error::from))?;
        let symmetric = (symmetric && own.is_some()).then_some(Symmetric { peers, least, aside });
        let mut list = registrations.list.write();
        let memory = Arc::new(Memory {
            id: list.next,
            dropped: AtomicBool::new(false),
            at,
            len,
            at_peers,
            symmetric,
            owner: Arc::new(owners.into_iter().chain(owner).collect::<Vec<_>>()),
        });
        list.next += 1;
        list.all.push(memory.clone());
        list.set_owner();
        Ok(Registered { memory })
    }

    /// Where each peer has mapped this rank's memory; where theirs is mapped here, and what keeps it so. All ranks call it.
    fn exchange_memory(
        &self,
        group: &Group,
        own: &RegisteredMemory,
        mapped: &Mapped,
    ) -> Result<([DevicePtr; MAX_RANKS], [DevicePtr; MAX_RANKS], Vec<Owner>)> {
        let inner = &*self.inner;
        for r in group.others() {
            inner.comm.send_memory(own, group.ranks[r], group.tag)?;
        }
        let theirs = group.others().map(|r| inner.comm.recv_memory(group.ranks[r], group.tag)?.wait());
        let theirs = theirs.collect::<mscclpp::Result<Vec<_>>>()?;
        let channels = theirs
            .iter()
            .zip(&mapped.channels)
            .map(|(theirs, channel)| Ok(MemoryChannel::new(channel.semaphore(), theirs, own, None)?));
        // Everybody has mapped before anybody writes.
        let channels = group.all_have("register", channels.collect::<Result<Vec<_>>>())?;
        // Where this rank finds everybody's memory.
        let mut found = [0; MAX_RANKS];
        for (r, channel) in group.others().zip(&channels) {
            found[r] = DevicePtr::from_ptr(channel.device_handle().dst).0;
        }
        let mut at_peers = [DevicePtr::NULL; MAX_RANKS];
        for (at, found) in at_peers.iter_mut().zip(group.all_gather(found)?) {
            *at = DevicePtr(found[self.rank()]);
        }
        let owners: Vec<Owner> =
            channels.iter().filter_map(|channel| KernelArgument::owner(&channel)).collect();
        Ok((at_peers, found.map(DevicePtr), owners))
    }

    /// Drops what was registered, on all ranks together, and frees what all of them have dropped. Every rank makes this call, in
    /// the same order as all others; it blocks until all do. Graphs that were captured before keep what they use.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] while a stream is being captured into which calls were put. [`Error::Below`] if a rank is
    /// lost meanwhile.
    pub fn deregister(&self, registered: Registered) -> Result<()> {
        let registrations = &self.inner.registrations;
        let _turn = registrations.turn.lock();
        let group = &self.inner.group.telling(Purpose::Register);
        let can = self.can_register("deregister");
        drop(registered);
        group.all_have("deregister", can)?;
        registrations.free_dropped(group)
    }

    fn can_register(&self, call: &str) -> Result<()> {
        self.check_usable()?;
        if self.inner.order.lock().is_in_capture()? {
            return Err(Error::InvalidArgument(format!(
                "{call}() while a stream is being captured; call it before the capture begins, or after it has ended"
            )));
        }
        Ok(())
    }
}

impl Registrations {
    /// Whether there are some: alike on all ranks.
    pub(crate) fn are_some(&self) -> bool {
        !self.list.read().all.is_empty()
    }

    /// What a call of this rank, `rank`, says of its receive memory (see `CollectiveDirectCall`), and what its launch keeps.
    pub(crate) fn places(
        &self,
        segments: &[Segment; MAX_RANKS],
        rank: usize,
    ) -> ([DevicePtr; MAX_RANKS], Owner) {
        let list = self.list.read();
        let mut places = [DevicePtr::NULL; MAX_RANKS];
        for (p, place) in places.iter_mut().enumerate().filter(|(p, _)| *p != rank) {
            let Segment { recv, recv_bytes, .. } = segments[p];
            // D2: from none of it is anything sent.
            let sends = segments
                .iter()
                .any(|segment| overlap((recv, recv_bytes), (segment.send, segment.send_bytes)));
            if recv_bytes > 0 && !sends {
                *place = list.find(recv, recv_bytes, p).unwrap_or(DevicePtr::NULL);
            }
        }
        (places, list.owner.clone())
    }

    /// Where the copies of a call of `rank` go by engines, if they can: alike on all ranks, by their promise.
    pub(crate) fn engines(&self, plan: &Plan, rank: usize, ranks: usize) -> Option<Places> {
        if !plan.same_offsets || ranks < 2 {
            return None;
        }
        let (own, recv) = (plan.segments[rank], plan.segments[0].recv);
        let bytes = own.recv_bytes * ranks as u64;
        let list = self.list.read();
        let memory = list.all.iter().find(|memory| {
            let least = memory.symmetric.as_ref().map_or(0, |symmetric| symmetric.least);
            let offset = recv.0.wrapping_sub(memory.at.0);
            offset <= least && bytes <= least - offset && !memory.dropped.load(Ordering::Relaxed)
        })?;
        let symmetric = memory.symmetric.as_ref()?;
        // C3.
        let in_place = own.send == own.recv;
        let clashes = plan.segments[..ranks].iter().any(|segment| {
            !(in_place && segment.send == own.recv)
                && overlap((recv, bytes), (segment.send, segment.send_bytes))
        });
        if clashes {
            return None;
        }
        let offset = own.recv.0 - memory.at.0;
        let at_peers = symmetric.peers.map(|base| base.add(offset));
        Some(Places { at_peers, aside: symmetric.aside.clone(), owner: memory.owner.clone() })
    }

    /// Frees what all ranks have dropped. Blocks until all call it.
    fn free_dropped(&self, group: &Group) -> Result<()> {
        let is_dropped = |memory: &&Arc<Memory>| memory.dropped.load(Ordering::Relaxed);
        let own: Vec<u64> = self.list.read().all.iter().filter(is_dropped).map(|memory| memory.id).collect();
        let all = group.all_gather_list(&own, None)?;
        let mut list = self.list.write();
        list.all.retain(|memory| !all.iter().all(|dropped| dropped.contains(&memory.id)));
        list.set_owner();
        Ok(())
    }
}

impl List {
    fn set_owner(&mut self) {
        self.owner = Arc::new(self.all.iter().map(|memory| memory.owner.clone()).collect());
    }

    /// Where peer `p` finds these bytes.
    fn find(&self, at: DevicePtr, bytes: u64, p: usize) -> Option<DevicePtr> {
        let memory = self.all.iter().find(|memory| {
            let offset = at.0.wrapping_sub(memory.at.0);
            offset <= memory.len && bytes <= memory.len - offset && !memory.dropped.load(Ordering::Relaxed)
        })?;
        let place = memory.at_peers[p].add(at.0 - memory.at.0);
        (memory.at_peers[p] != DevicePtr::NULL && (at.0 | place.0).is_multiple_of(16)).then_some(place)
    }
}

pub(crate) fn overlap((a, a_bytes): (DevicePtr, u64), (b, b_bytes): (DevicePtr, u64)) -> bool {
    a.0 < b.0.saturating_add(b_bytes) && b.0 < a.0.saturating_add(a_bytes) && a_bytes > 0 && b_bytes > 0
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.memory.dropped.store(true, Ordering::Relaxed);
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered")
            .field("address", &self.memory.at)
            .field("bytes", &self.memory.len)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: u64 = 1 << 20;
    const THERE: u64 = 1 << 30;

    /// One memory of 1000 bytes that rank 1 has mapped.
    fn registrations() -> Registrations {
        let mut at_peers = [DevicePtr::NULL; MAX_RANKS];
        at_peers[1] = DevicePtr(THERE);
        let (dropped, owner) = (AtomicBool::new(false), Arc::new(Vec::<Owner>::new()));
        let memory = Arc::new(Memory {
            id: 0,
            dropped,
            at: DevicePtr(HERE),
            len: 1000,
            at_peers,
            symmetric: None,
            owner,
        });
        let all = vec![memory];
        Registrations { list: RwLock::new(List { all, ..List::default() }), turn: Mutex::default() }
    }

    #[test]
    fn a_place_lies_in_registered_memory_whole_and_nothing_is_sent_from_it() {
        let registrations = registrations();
        let place = |offset: u64, bytes: u64, sent_from: u64| {
            let mut segments = [Segment::NONE; MAX_RANKS];
            segments[1].recv = DevicePtr(HERE).add(offset);
            segments[1].recv_bytes = bytes;
            segments[0].send = DevicePtr(sent_from);
            segments[0].send_bytes = 64;
            registrations.places(&segments, 0).0[1].0
        };
        assert_eq!(place(0, 1000, 8), THERE);
        assert_eq!(place(32, 968, 8), THERE + 32);
        for (offset, bytes, sent_from) in [
            (0, 1001, 8),
            (32, 969, 8),
            (8, 16, 8),
            (2000, 16, 8),
            (0, 0, 8),
            (64, 128, HERE + 191),
            (64, 128, HERE + 1),
        ] {
            assert_eq!(place(offset, bytes, sent_from), 0, "{offset} {bytes} {sent_from:#x}");
        }
        assert_eq!(place(64, 128, HERE + 192), THERE + 64);
        assert_eq!(place(64, 128, HERE), THERE + 64);
        registrations.list.read().all[0].dropped.store(true, Ordering::Relaxed);
        assert_eq!(place(0, 1000, 8), 0);
    }
}
