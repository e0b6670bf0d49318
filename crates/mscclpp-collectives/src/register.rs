//! Memory that ranks register together, so that peers write into it.

use std::{
    fmt,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use mscclpp::{
    DeviceBuffer, DevicePtr, Gpu, MemoryChannel, Platform, RegisteredMemory, Stream, Transport,
    gpu::{KernelArgument, Owner},
};
use parking_lot::{Mutex, RwLock};

use crate::{
    Collectives, Error, Result,
    calls::{CollectivesState, Engine, Mapped},
    copy_engines::Places,
    group::{Group, Purpose},
    handle::{CollectiveCall, CollectiveDirectCall, CollectivePlace, LINE, MAX_RANKS, Registration, Segment},
    plan::Plan,
};

/// Receive memory that is registered with [`Collectives::register`].
///
/// When it is dropped, calls of this rank do not use it any more: what comes into this memory is copied out of the scratch, as
/// into any other. Of [symmetric](Collectives::register_symmetric) memory all ranks drop theirs between the same calls.
///
/// The registration owns the buffer until the last rank has let go of it, whatever is done with other clones of the
/// buffer: peers may still write into it. They let go when all ranks have dropped theirs and the ranks register
/// something or deregister; when they drop their collectives; and when they die.
#[must_use = "calls use the memory until this is dropped"]
pub struct Registered {
    memory: Arc<Memory>,
}

/// The registered memory, in the order of the calls, and so alike on all ranks: where a place is, ranks tell each other by a
/// registration's place in the list and an offset.
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
    /// The table by which kernels find them: see D7 in `collective_direct_device.hpp`.
    table: DevicePtr,
    /// All of them and the table, for launches.
    owner: Arc<Vec<Owner>>,
}

struct Memory {
    id: u64,
    dropped: AtomicBool,
    at: DevicePtr,
    len: u64,
    /// The memory that the peers have registered with it, as mapped here. None where nobody writes into it.
    peers: Option<Registration>,
    /// The limits of symmetric memory; none for other memory.
    symmetric: Option<Symmetric>,
    /// Keeps the memory, and what the peers have registered with it.
    owner: Owner,
}

/// The memory that a rank registers: where it is, where in the memory that peers map it begins, and its length.
#[derive(Clone, Copy)]
struct Part {
    at: DevicePtr,
    offset: u64,
    len: u64,
}

/// The limits of symmetric memory.
struct Symmetric {
    /// The length of the shortest.
    least: u64,
    /// See [`Places::aside`].
    aside: Option<Stream>,
}

impl Collectives {
    /// Registers `buffer` on all ranks together, so that peers may write into it. Every rank makes this call, in the same
    /// order as all others, with a buffer of its own; lengths may differ. It blocks until all do.
    ///
    /// Nothing need be registered: it makes large calls faster that move and do not reduce, and that take what comes
    /// in registered memory. What comes is then not copied out of the scratch. A call finds its memory by itself, at
    /// any offset. Where that does not lie in registered memory whole, is none of a multiple of 16 bytes for each
    /// peer, or overlaps what the same call sends, this rank takes what comes as ever, whatever the other ranks do.
    /// Such calls wait a little longer than without any registration: so register the receive memory of all large
    /// calls, or none.
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
    /// # let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(Platform::Sim));
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
    /// [`Error::InvalidArgument`] for memory of another device, and while a stream is being captured into which calls
    /// were put: register before the capture. (Of streams that [other code made](mscclpp::Stream::from_raw) it is not
    /// known.) [`Error::Below`] if the memory cannot be shared or mapped. If one rank fails, all do.
    pub fn register(&self, buffer: &DeviceBuffer) -> Result<Registered> {
        self.register_buffer(buffer, false)
    }

    /// Registers *symmetric* memory, else as [`Collectives::register`] does: in each `all_gather` and `all_to_all`
    /// that takes what comes in this memory, all ranks give the same offset in what they have registered together. If
    /// one of them sends from it, too, all do, from the same offset.
    ///
    /// So a rank knows without asking where the others take what it sends, and the largest calls go by the copy
    /// engines of the devices ([`Protocol::CopyEngine`](crate::Protocol::CopyEngine)), which reach more of the link
    /// than kernels do and leave the multiprocessors to others. If ranks do not keep to it, what they send lies in the
    /// wrong place of this memory, or they wait for ever. If a rank aborts, its time is up, or it has lost another, it
    /// still writes what its calls send: into this memory of ranks that have not come to these calls, too. So nobody
    /// uses what it has there after another rank has given up, which it may not know yet.
    ///
    /// # Errors
    /// As there. [`Error::InvalidArgument`] if another rank calls [`Collectives::register`].
    pub fn register_symmetric(&self, buffer: &DeviceBuffer) -> Result<Registered> {
        self.register_buffer(buffer, true)
    }

    /// Registers a part of a buffer, the bytes in `range`, as [`Collectives::register`] or
    /// [`Collectives::register_symmetric`] does. Ranks
    /// may give parts at different offsets of their buffers.
    ///
    /// # Errors
    /// As there; [`Error::InvalidArgument`] on this rank for a part that is empty or not in the buffer.
    pub fn register_part(
        &self,
        buffer: &DeviceBuffer,
        range: Range<u64>,
        symmetric: bool,
    ) -> Result<Registered> {
        let part = Part {
            at: buffer.ptr().add(range.start),
            offset: range.start,
            len: range.end - range.start.min(range.end),
        };
        self.register_with(part, symmetric, buffer.owner(), || {
            self.expect_here([buffer])?;
            if part.len == 0 || range.end > buffer.len() {
                let len = buffer.len();
                return Err(Error::InvalidArgument(format!(
                    "bytes {range:?} are no part of a buffer of {len}"
                )));
            }
            Ok(self.inner.comm.register_buffer(buffer, Transport::CUDA_IPC)?)
        })
    }

    fn register_buffer(&self, buffer: &DeviceBuffer, symmetric: bool) -> Result<Registered> {
        self.register_part(buffer, 0..buffer.len(), symmetric)
    }

    /// Registers `bytes` bytes of device memory, by their address, as [`Collectives::register`] or
    /// [`Collectives::register_symmetric`] does, for bindings. Memory in a [`DeviceBuffer`] is registered by
    /// [`Collectives::register_part`], which keeps it.
    ///
    /// # Safety
    /// They are memory of this rank's device, and stay it until all ranks have dropped their part of the registration, or their
    /// collectives, and calls and graphs that were made meanwhile are gone: until then peers write into it. That this rank has
    /// dropped its own is not enough.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn register_memory(
        &self,
        memory: DevicePtr,
        bytes: u64,
        symmetric: bool,
    ) -> Result<Registered> {
        let part = Part { at: memory, offset: 0, len: bytes };
        self.register_with(part, symmetric, None, || {
            // SAFETY: the caller's promise.
            Ok(unsafe { self.inner.comm.register_memory(memory, bytes, Transport::CUDA_IPC)? })
        })
    }

    fn register_with(
        &self,
        part: Part,
        symmetric: bool,
        owner: Option<Owner>,
        register: impl FnOnce() -> Result<RegisteredMemory>,
    ) -> Result<Registered> {
        let inner = &*self.inner;
        let registrations = &inner.registrations;
        let _turn = registrations.turn.lock();
        let group = &inner.group.telling(Purpose::Register);
        let own = self.can_register("register").and_then(|()| match &inner.engine {
            Engine::Memory(_) => register().map(Some),
            Engine::Ports(_) | Engine::Nodes(_) => Ok(None),
        });
        let own = group.all_have("register", own)?;
        let Part { at, offset, len } = part;
        let all = group.all_gather([symmetric.into(), offset, len])?;
        if let Some(other) = all.iter().position(|[theirs, ..]| *theirs != u64::from(symmetric)) {
            return Err(Error::InvalidArgument(format!(
                "rank {} registers memory as symmetric, and rank {} does not, or the other way round",
                self.rank(),
                inner.group.ranks[other]
            )));
        }
        let kept = registrations.kept(group)?;
        let made = || {
            let (peers, owners) = match (&own, &inner.engine) {
                (Some(own), Engine::Memory(mapped)) => {
                    let (peers, owners) = self.exchange_memory(group, own, mapped, &all)?;
                    (Some(peers), owners)
                }
                _ => (None, Vec::new()),
            };
            let least = all.iter().fold(len, |least, [.., len]| least.min(*len));
            let aside = if inner.gpu.platform() == Platform::Sim { None } else { Some(inner.gpu.stream()?) };
            let symmetric = (symmetric && peers.is_some()).then_some(Symmetric { least, aside });
            let memory = Arc::new(Memory {
                id: registrations.list.read().next,
                dropped: AtomicBool::new(false),
                at,
                len,
                peers,
                symmetric,
                owner: Arc::new(owners.into_iter().chain(owner).collect::<Vec<_>>()),
            });
            let list =
                List::of(&inner.gpu, memory.id + 1, kept.into_iter().chain([memory.clone()]).collect())?;
            Ok((memory, list))
        };
        // Everybody has mapped before anybody writes.
        let (memory, list) = group.all_have("register", made())?;
        *registrations.list.write() = list;
        Ok(Registered { memory })
    }

    /// Maps what the peers have registered, and returns it with what keeps it mapped. `said` is what each rank says of its
    /// part: its offset and length come last. All ranks call it.
    fn exchange_memory(
        &self,
        group: &Group,
        own: &RegisteredMemory,
        mapped: &Mapped,
        said: &[[u64; 3]],
    ) -> Result<(Registration, Vec<Owner>)> {
        let inner = &*self.inner;
        for r in group.others() {
            inner.comm.send_memory(own, group.ranks[r], group.tag)?;
        }
        let theirs = group.others().map(|r| inner.comm.recv_memory(group.ranks[r], group.tag)?.wait());
        let theirs = theirs.collect::<mscclpp::Result<Vec<_>>>()?;
        let (mut peers, mut owners) = (Registration::NONE, Vec::new());
        for ((r, theirs), channel) in group.others().zip(&theirs).zip(&mapped.channels) {
            let channel = MemoryChannel::new(channel.semaphore(), theirs, own, None)?;
            let ([_, offset, len], size) = (said[r], theirs.size());
            if offset.checked_add(len).is_none_or(|end| end > size) {
                let problem = format!("it registers {len} bytes at offset {offset} of a memory of {size}");
                return Err(group.malformed(r, problem));
            }
            peers.at[r] = DevicePtr::from_ptr(channel.device_handle().dst).add(offset);
            peers.bytes[r] = len;
            owners.extend(KernelArgument::owner(&&channel));
        }
        Ok((peers, owners))
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
        let kept = registrations.kept(group)?;
        let (next, all) = {
            let list = registrations.list.read();
            (list.next, list.all.len())
        };
        if kept.len() < all {
            let list = group.all_have("deregister", List::of(&self.inner.gpu, next, kept))?;
            *registrations.list.write() = list;
        }
        Ok(())
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

    /// A call of this rank, `rank`, with what it says of its receive memory, and what its launch keeps.
    pub(crate) fn direct(&self, call: CollectiveCall, rank: usize) -> (CollectiveDirectCall, Owner) {
        let list = self.list.read();
        let places = list.places(&call.segments, rank);
        let (registered, registrations) = (list.table, list.all.len() as u64);
        (CollectiveDirectCall { call, places, registered, registrations }, list.owner.clone())
    }

    /// Where the copies of a call of `rank` go by engines, if they can: alike on all ranks, by their promise.
    pub(crate) fn copy_engines(&self, plan: &Plan, rank: usize, ranks: usize) -> Option<Places> {
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
        let (symmetric, peers) = (memory.symmetric.as_ref()?, memory.peers.as_ref()?);
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
        let at_peers = peers.at.map(|base| base.add(offset));
        Some(Places { at_peers, aside: symmetric.aside.clone(), owner: memory.owner.clone() })
    }

    /// Returns the memory that not all ranks have dropped. Blocks until all call it.
    fn kept(&self, group: &Group) -> Result<Vec<Arc<Memory>>> {
        let mut all = self.list.read().all.clone();
        let is_dropped = |memory: &&Arc<Memory>| memory.dropped.load(Ordering::Relaxed);
        let own: Vec<u64> = all.iter().filter(is_dropped).map(|memory| memory.id).collect();
        let dropped = group.all_gather_list(&own, None)?;
        all.retain(|memory| !dropped.iter().all(|dropped| dropped.contains(&memory.id)));
        Ok(all)
    }
}

impl List {
    fn of(gpu: &Gpu, next: u64, all: Vec<Arc<Memory>>) -> Result<Self> {
        let table: Vec<_> = all.iter().map(|memory| memory.peers.unwrap_or(Registration::NONE)).collect();
        let mut owner: Vec<_> = all.iter().map(|memory| memory.owner.clone()).collect();
        let mut at = DevicePtr::NULL;
        if !table.is_empty() {
            let buffer = gpu.allocate(size_of_val(&*table) as u64)?;
            buffer.write_params(0, &table)?;
            at = buffer.ptr();
            owner.extend((&buffer).owner());
        }
        Ok(Self { next, all, table: at, owner: Arc::new(owner) })
    }

    /// Where what comes to `rank` from each peer has a place.
    fn places(&self, segments: &[Segment; MAX_RANKS], rank: usize) -> [CollectivePlace; MAX_RANKS] {
        let mut places = [CollectivePlace::NONE; MAX_RANKS];
        for (p, place) in places.iter_mut().enumerate().filter(|(p, _)| *p != rank) {
            let Segment { recv, recv_bytes, .. } = segments[p];
            // D2: from none of it is anything sent.
            let sends = segments
                .iter()
                .any(|segment| overlap((recv, recv_bytes), (segment.send, segment.send_bytes)));
            if recv_bytes > 0 && !sends {
                *place = self.find(recv, recv_bytes).unwrap_or(CollectivePlace::NONE);
            }
        }
        places
    }

    /// The place of these bytes in what is registered, if peers may write there.
    fn find(&self, at: DevicePtr, bytes: u64) -> Option<CollectivePlace> {
        let (index, memory) = self.all.iter().enumerate().find(|(_, memory)| {
            let offset = at.0.wrapping_sub(memory.at.0);
            offset <= memory.len && bytes <= memory.len - offset && !memory.dropped.load(Ordering::Relaxed)
        })?;
        // Peers map memory by pages, so what is a multiple of 16 here is one there.
        let usable = memory.peers.is_some() && at.0.is_multiple_of(16);
        usable.then(|| CollectivePlace { registration: index as u64 + 1, offset: at.0 - memory.at.0 })
    }
}

impl CollectivesState {
    /// The error of a call to which rank `other` has said a place that is none, as its kernel found it.
    pub(crate) fn no_place(&self, mapped: &Mapped, other: usize, parity: u32) -> Result<Error> {
        let line = 2 * other as u64 + u64::from(parity);
        let mut said = [0u64; 3];
        // Behind the words of a check: see `DirectPlaces` of the headers.
        mapped.memory.read_params(mapped.layout.parts.checks + line * LINE + 32, &mut said)?;
        let [registration, offset, bytes] = said;
        let list = self.registrations.list.read();
        let peers = registration.checked_sub(1).and_then(|at| list.all.get(usize::try_from(at).ok()?)?.peers);
        let here = match peers {
            Some(peers) => format!("of which {} bytes are mapped here", peers.bytes[other]),
            None => format!("and the last one here is {}", list.all.len()),
        };
        Ok(self.group.malformed(
            other,
            format!("it takes {bytes} bytes at offset {offset} of registration {registration}, {here}"),
        ))
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

    /// One memory of 1000 bytes, of which peers have others.
    fn registrations() -> Registrations {
        let (dropped, owner) = (AtomicBool::new(false), Arc::new(Vec::<Owner>::new()));
        let memory = Arc::new(Memory {
            id: 0,
            dropped,
            at: DevicePtr(HERE),
            len: 1000,
            peers: Some(Registration::NONE),
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
            let place = registrations.list.read().places(&segments, 0)[1];
            (place != CollectivePlace::NONE).then(|| {
                assert_eq!(place.registration, 1);
                place.offset
            })
        };
        assert_eq!(place(0, 1000, 8), Some(0));
        assert_eq!(place(32, 968, 8), Some(32));
        for (offset, bytes, sent_from) in [
            (0, 1001, 8),
            (32, 969, 8),
            (8, 16, 8),
            (2000, 16, 8),
            (0, 0, 8),
            (64, 128, HERE + 191),
            (64, 128, HERE + 1),
        ] {
            assert_eq!(place(offset, bytes, sent_from), None, "{offset} {bytes} {sent_from:#x}");
        }
        assert_eq!(place(64, 128, HERE + 192), Some(64));
        assert_eq!(place(64, 128, HERE), Some(64));
        registrations.list.read().all[0].dropped.store(true, Ordering::Relaxed);
        assert_eq!(place(0, 1000, 8), None);
    }

    /// Whatever is asked, calls go directly.
    #[derive(Debug)]
    #[cfg(feature = "cuda-ipc")]
    struct Directly;

    #[cfg(feature = "cuda-ipc")]
    impl crate::Selector for Directly {
        fn choose(&self, _: &crate::Query) -> crate::Selection {
            crate::Selection { protocol: crate::Protocol::Direct, two_steps: false, blocks: 2, threads: 64 }
        }
    }

    /// Rank 1 says of its memory what cannot be.
    #[cfg(feature = "cuda-ipc")]
    #[test]
    fn a_place_that_is_not_in_what_a_rank_has_mapped_is_not_written_to() {
        use mscclpp::{Communicator, Context, ContextExt, ErrorKind, LocalBootstrap};

        let said = |forge: &(dyn Fn(&mut List) + Sync)| {
            let rank = |bootstrap| {
                let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(Platform::Sim));
                let rank = comm.bootstrap().rank();
                let gpu = comm.context().gpu(rank).expect("a device");
                let builder = Collectives::builder(&comm, &gpu).scratch(1 << 20).selector(Directly);
                let collectives = builder.connect().expect("collectives");
                let [own, all] = [1 << 15, 1 << 16]
                    .map(|bytes| crate::DeviceSlice::<u64>::new(&gpu.allocate(bytes).unwrap()).unwrap());
                let _registered = collectives.register(all.buffer()).expect("a registration");
                if rank == 1 {
                    forge(&mut collectives.inner.registrations.list.write());
                }
                let stream = gpu.stream().expect("a stream");
                let called = collectives.all_gather(&own, &all, &stream);
                let failed = called.and_then(|()| collectives.synchronize(&stream));
                if rank == 0 {
                    // Rank 1 waits for what does not come.
                    comm.abort("rank 0 has given up its call");
                }
                failed.expect_err("it is refused, or ended")
            };
            let ranks = LocalBootstrap::group(2).into_iter();
            std::thread::scope(|scope| {
                let threads: Vec<_> = ranks.map(|bootstrap| scope.spawn(move || rank(bootstrap))).collect();
                let mut errors = threads.into_iter().map(|thread| thread.join().expect("no panic"));
                let first = errors.next().expect("rank 0");
                errors.for_each(drop);
                first
            })
        };
        let other = |list: &List, at, len| {
            let (peers, owner) = (list.all[0].peers, list.all[0].owner.clone());
            Arc::new(Memory {
                id: 9,
                dropped: AtomicBool::new(false),
                at,
                len,
                peers,
                symmetric: None,
                owner,
            })
        };
        // Another registration, of which rank 0 does not know; and a longer one, that begins before.
        let unknown = said(&|list| list.all.insert(0, other(list, DevicePtr(16), 16)));
        let longer = said(&|list| {
            let (at, len) = (list.all[0].at.0, list.all[0].len);
            list.all[0] = other(list, DevicePtr(at - 65_536), len + 65_536);
        });
        for (error, problem) in [
            (unknown, "32768 bytes at offset 0 of registration 2, and the last one here is 1"),
            (longer, "32768 bytes at offset 65536 of registration 1, of which 65536 bytes are mapped here"),
        ] {
            assert_eq!(error.kind(), ErrorKind::Remote, "{error:?}");
            assert!(
                error.to_string().contains("rank 1 sent") && error.to_string().contains(problem),
                "{error}"
            );
        }
    }
}
