//! Memory that ranks register together, so that peers write into it.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use mscclpp::{
    DeviceBuffer, DevicePtr, Platform, RegisteredMemory, Transport,
    gpu::{KernelArgument, Owner},
};

use crate::{
    Collectives, Error, Result,
    handle::MappedSegments,
    rank::{List, MappedSegment, Memory, Part, SegmentMemory, Symmetric, is_slot, purpose},
};

/// Receive memory that is registered with [`Collectives::register`].
///
/// When it is dropped, calls of this rank do not use it any more: data for this memory is copied out of the scratch, as it is for
/// memory that is not registered. All ranks drop [symmetric](Collectives::register_symmetric) memory between the same calls.
///
/// The registration keeps the buffer until the last rank has released it, whatever is done with other clones of the
/// buffer, because peers may still write into it. A rank releases it when all ranks have dropped their registrations and then
/// register something or deregister; when it drops its collectives; and when it dies.
#[must_use = "calls use the memory until this is dropped"]
pub struct Registered {
    memory: Arc<Memory>,
    rank: usize,
}

impl Collectives {
    /// Registers `buffer` on all ranks together, so that peers may write into it. Every rank makes this call, in the same
    /// order as all others, with a buffer of its own; lengths may differ. It blocks until all do.
    ///
    /// No memory needs to be registered. Large calls that take data into registered memory are faster if they move and do not
    /// reduce, or are an `all_reduce` among more than two ranks, because the data is not copied out of the scratch then. A call
    /// finds the registered memory by itself. The data from a peer is still copied out of the scratch, whatever the other ranks
    /// do, if its place does not lie in registered memory whole, begins at no multiple of 16 bytes, or overlaps what the
    /// same call sends (but an `all_reduce` may be in place).
    ///
    /// [`Collectives::publish`] does the same for one rank, without waiting for others, and captured calls do it by
    /// themselves. This call is for programs that want the next call to go directly, or want to know that no rank had an
    /// error. All ranks know then that memory is registered. So calls may go in bulk
    /// ([`Protocol::Bulk`](crate::Protocol::Bulk)), and an `all_to_all` of a group whose counts only pairs of ranks know
    /// has a launch of its own and goes directly.
    ///
    /// A captured call uses what is registered when it is captured, and its graph keeps that.
    ///
    /// ```
    /// # #[cfg(feature = "cuda-ipc")]
    /// # fn main() -> Result<(), mscclpp_collectives::Error> {
    /// # use std::sync::Arc;
    /// # use mscclpp::prelude::*;
    /// # use mscclpp_collectives::{Collectives, DeviceSlice};
    /// # use mscclpp_collectives::Result;
    /// # let ranks = LocalBootstrap::group(2).into_iter().map(|bootstrap| std::thread::spawn(move || -> Result<()> {
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

    /// Registers memory that all ranks promise to use alike, which is called *symmetric*: in each `all_gather` and `all_to_all`
    /// that receives into it, all ranks pass the same offset. If one rank also sends from it, all do, from the same offset.
    ///
    /// So a rank knows without asking where the others take what it sends, and the largest calls go by the copy
    /// engines of the devices ([`Protocol::CopyEngine`](crate::Protocol::CopyEngine)), which reach more of the link
    /// than kernels do and leave the multiprocessors to others. If ranks do not keep to it, what they send lies in the
    /// wrong place of this memory, or they wait for ever. If a rank aborts, its time is up, or it has lost another, it
    /// still writes what its calls send: into this memory of ranks that have not come to these calls, too. So nobody
    /// uses what it has there after another rank has given up, which it may not know yet.
    ///
    /// # Errors
    /// The errors of [`Collectives::register`]; [`Error::InvalidArgument`] if another rank calls [`Collectives::register`].
    pub fn register_symmetric(&self, buffer: &DeviceBuffer) -> Result<Registered> {
        self.register_buffer(buffer, true)
    }

    /// Registers a part of a buffer, the bytes in `range`, as [`Collectives::register`] or
    /// [`Collectives::register_symmetric`] does. Ranks
    /// may give parts at different offsets of their buffers.
    ///
    /// # Errors
    /// The errors of [`Collectives::register`]; [`Error::InvalidArgument`] on this rank for a part that is empty or not in the
    /// buffer.
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
            Ok(self.rank.comm.register_buffer(buffer, Transport::CUDA_IPC)?)
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
    /// The errors of [`Collectives::register`].
    pub unsafe fn register_memory(
        &self,
        memory: DevicePtr,
        bytes: u64,
        symmetric: bool,
    ) -> Result<Registered> {
        let part = Part { at: memory, offset: 0, len: bytes };
        self.register_with(part, symmetric, None, || {
            // SAFETY: the caller's promise.
            Ok(unsafe { self.rank.comm.register_memory(memory, bytes, Transport::CUDA_IPC)? })
        })
    }

    fn register_with(
        &self,
        part: Part,
        symmetric: bool,
        owner: Option<Owner>,
        register: impl FnOnce() -> Result<RegisteredMemory>,
    ) -> Result<Registered> {
        let (rank, engine) = (&*self.rank, &*self.engine);
        let registrations = &rank.registrations;
        let _turn = registrations.turn();
        let group = &rank.group.telling(purpose::REGISTER, 0);
        let own = self.can_register("register").and_then(|()| match engine.maps_memory() {
            true => register().map(Some),
            false => Ok(None),
        });
        let own = group.all_have("register", own)?;
        let Part { at, offset, len } = part;
        // If there is no free slot, data for this memory goes through the scratch.
        let segment =
            self.publisher.as_ref().and_then(|_| rank.registry.add(SegmentMemory::Registered(at, len)));
        // The word by which peers know the segment, 0 for none: its generation, and in the lower 16 bits its slot.
        let named = segment.as_ref().map_or(0, |segment| segment.generation << 16 | segment.slot);
        let all = group.all_gather([symmetric.into(), offset, len, named])?;
        if let Some(other) = all.iter().position(|[theirs, ..]| *theirs != u64::from(symmetric)) {
            return Err(Error::InvalidArgument(format!(
                "rank {} registers memory as symmetric, and rank {} does not, or the other way round",
                self.rank(),
                group.ranks()[other]
            )));
        }
        let kept = registrations.kept(group)?;
        let made = || -> Result<_> {
            let mapping = own.as_ref().map(|own| engine.map(rank, group, own, &all)).transpose()?.flatten();
            let mut owners: Vec<Owner> = owner.into_iter().collect();
            let mut peers = None;
            if let Some(mapping) = mapping {
                owners.extend(mapping.owners);
                let MappedSegments { at, bytes } = *peers.insert(mapping.peers);
                for (r, memory) in group.others().zip(mapping.memories) {
                    let [.., named] = all[r];
                    let (generation, slot) = (named >> 16, named & 0xffff);
                    if is_slot(slot) {
                        let (at, bytes) = (at[r], bytes[r]);
                        rank.registry.peers.map(
                            r,
                            slot,
                            MappedSegment { generation, at, bytes, _memory: memory },
                        )?;
                    }
                }
            }
            let least = all.iter().fold(len, |least, [.., len, _]| least.min(*len));
            let aside = if rank.gpu.platform() == Platform::Sim { None } else { Some(rank.gpu.stream()?) };
            let memory = Arc::new(Memory {
                id: registrations.read().next,
                dropped: AtomicBool::new(false),
                at,
                len,
                segment: segment.clone(),
                peers,
                symmetric: (symmetric && peers.is_some()).then_some(Symmetric { least, aside }),
                owner: Arc::new(owners),
            });
            let list = List { next: memory.id + 1, all: kept.into_iter().chain([memory.clone()]).collect() };
            Ok((memory, list))
        };
        // No rank writes before all ranks have mapped.
        let (memory, list) = group.all_have("register", made())?;
        if let Some(segment) = &memory.segment {
            rank.registry.set_ready(segment)?;
        }
        *registrations.write() = list;
        Ok(Registered { memory, rank: rank.rank() })
    }

    /// Drops a registration, on all ranks together, and releases all memory whose registrations all ranks have dropped: peers
    /// unmap it within milliseconds. Every rank makes this call, in the same order as all others; it blocks until all do. Graphs
    /// that were captured before keep what they use.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] while a stream is being captured into which calls were put. [`Error::Below`] if a rank is
    /// lost meanwhile.
    pub fn deregister(&self, registered: Registered) -> Result<()> {
        let registrations = &self.rank.registrations;
        let _turn = registrations.turn();
        let group = &self.rank.group.telling(purpose::REGISTER, 0);
        let can = self.can_register("deregister");
        drop(registered);
        group.all_have("deregister", can)?;
        let kept = registrations.kept(group)?;
        let (next, all) = {
            let list = registrations.read();
            (list.next, list.all.len())
        };
        if kept.len() < all {
            *registrations.write() = List { next, all: kept };
        }
        Ok(())
    }

    fn can_register(&self, call: &str) -> Result<()> {
        self.check_usable()?;
        if self.rank.order.is_in_capture()? {
            return Err(Error::InvalidArgument(format!(
                "{call}() while a stream is being captured; call it before the capture begins, or after it has ended"
            )));
        }
        Ok(())
    }
}

impl Registered {
    /// The address at which this rank's device reaches what `rank` has registered, and its length in bytes. None if there is no
    /// such rank, and for peers between nodes. The memory stays mapped until this is dropped.
    #[must_use]
    pub fn of(&self, rank: usize) -> Option<(DevicePtr, u64)> {
        if rank == self.rank {
            return Some((self.memory.at, self.memory.len));
        }
        let peers = self.memory.peers.as_ref()?;
        let place = (*peers.at.get(rank)?, *peers.bytes.get(rank)?);
        (place.0 != DevicePtr::NULL).then_some(place)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.memory.dropped.store(true, Ordering::Relaxed);
        if let Some(segment) = &self.memory.segment {
            segment.end();
        }
    }
}

mscclpp_os::debug_fields!(Registered, |this| address: this.memory.at, bytes: this.memory.len);

#[cfg(all(test, feature = "cuda-ipc"))]
mod tests {
    use mscclpp::{Communicator, Context, ContextExt, DevicePtr, ErrorKind, LocalBootstrap, Platform};

    use super::*;
    use crate::rank::Segment;

    /// Chooses the protocol `Direct` for every call.
    #[derive(Debug)]
    struct Directly;

    impl crate::Selector for Directly {
        fn choose(&self, _: &crate::Query) -> crate::Selection {
            crate::Selection { protocol: crate::Protocol::Direct, two_steps: false, blocks: 2, threads: 64 }
        }
    }

    /// Rank 1 names places that do not exist.
    #[test]
    fn a_place_that_is_not_in_what_a_rank_has_mapped_is_not_written_to() {
        let error_of = |forge: &(dyn Fn(&Collectives, &DeviceBuffer) -> Vec<Arc<Segment>> + Sync)| {
            let rank = |bootstrap| {
                let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(Platform::Sim));
                let rank = comm.bootstrap().rank();
                let gpu = comm.context().gpu(rank).expect("a device");
                let builder = Collectives::builder(&comm, &gpu).scratch(1 << 20).selector(Directly);
                let collectives = builder.connect().expect("collectives");
                let [own, all] = [1 << 15, 1 << 16]
                    .map(|bytes| crate::DeviceSlice::<u64>::new(&gpu.allocate(bytes).unwrap()).unwrap());
                let registered = collectives.register(all.buffer()).expect("a registration");
                let forged = if rank == 1 { forge(&collectives, all.buffer()) } else { Vec::new() };
                forged
                    .iter()
                    .for_each(|segment| collectives.rank.registry.set_ready(segment).expect("memory"));
                let stream = gpu.stream().expect("a stream");
                let called = collectives.all_gather(&own, &all, &stream);
                let failed = called.and_then(|()| collectives.synchronize(&stream));
                if rank == 0 {
                    // Rank 1 waits for data that does not come.
                    comm.abort("rank 0 has given up its call");
                }
                drop((registered, forged));
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
        let registry = |collectives: &Collectives| Arc::clone(&collectives.rank.registry);
        // A segment of which rank 0 has not been told; and a longer one in the slot of the segment that rank 0 has mapped.
        let unknown = error_of(&|collectives, all| {
            collectives.rank.registrations.read().all[0].segment.as_ref().expect("a segment").end();
            let memory = SegmentMemory::Registered(all.ptr(), all.len());
            registry(collectives).add(memory).into_iter().collect()
        });
        let longer = error_of(&|collectives, all| {
            let known = collectives.rank.registrations.read().all[0].segment.clone().expect("a segment");
            known.end();
            let memory = SegmentMemory::Registered(DevicePtr(all.ptr().0 - 65_536), all.len() + 65_536);
            vec![registry(collectives).add_in_slot(known.slot, memory)]
        });
        for (error, problem) in [
            (unknown, "32768 bytes at offset 0 of segment 2, and the last one here is 1"),
            (longer, "32768 bytes at offset 65536 of segment 1, of which 65536 bytes are mapped here"),
        ] {
            assert_eq!(error.kind(), ErrorKind::Remote, "{error:?}");
            assert!(
                error.to_string().contains("rank 1 sent") && error.to_string().contains(problem),
                "{error}"
            );
        }
    }
}
