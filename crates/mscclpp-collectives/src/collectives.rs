//! The collectives of one rank: calls in, launches out.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use mscclpp::{
    Communicator, DeviceBuffer, Gpu, Stream,
    errors::CoreError,
    gpu::{Abort, KernelWait},
};

use crate::{
    CollectivesBuilder, Error, Request, Result,
    all_reduces::RequestAndPlan,
    calls::{CollectivesState, Engine},
    group::Purpose,
    handle::{LINE, Message, NO_PLACE, OVERLAP},
    messages::Messages,
    model,
    plan::Planned,
    select::{Devices, Selection},
    signature::described,
};

/// The collectives of a rank with others, each on a device of its own or several on one: as threads of one process, as processes,
/// or on [several nodes](CollectivesBuilder::between_nodes). Clones are the same.
///
/// Every rank makes the same calls in the same order, with the same counts, types, operations and roots; only
/// [send](Self::send) and [receive](Self::recv) are of two ranks alone. A call puts one kernel into a stream, or a few
/// with ranks on several nodes, and returns: it does not wait for other ranks, but where the driver's queue of
/// launches is full. Results are there when the stream has come so far. Calls of different streams are done in the
/// order in which they are made, which this sees to; graphs in which calls were captured, and what else runs beside
/// them, the program orders itself. Calls may be captured in graphs, and replayed any number of times, as long as all
/// ranks replay the same.
///
/// No memory need be registered; [`Collectives::register`] makes large calls faster. What a call is given lives until it is
/// complete.
///
/// Bits do not depend on how a call was done: see [`ReduceOp`](crate::ReduceOp).
///
/// A rank that drops its collectives ends the waits of others for it. So after the last call, ranks wait for each other
/// ([`Bootstrap::barrier`](mscclpp::Bootstrap::barrier)) before they drop theirs.
///
/// When a rank dies, the calls of all others end, and the next synchronize of their stream, or the next call, says
/// which. From then on, and after [`Collectives::abort`], nothing can be called any more.
///
/// ```
/// # #[cfg(feature = "cuda-ipc")]
/// # fn main() -> Result<(), mscclpp_collectives::Error> {
/// # use std::sync::Arc;
/// use mscclpp::prelude::*;
/// use mscclpp_collectives::{Collectives, DeviceSlice, ReduceOp};
///
/// # let ranks = LocalBootstrap::group(2).into_iter().map(|bootstrap| std::thread::spawn(move || -> Result<(), mscclpp_collectives::Error> {
/// # let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(Platform::Sim));
/// # let rank = comm.bootstrap().rank();
/// let gpu = comm.context().gpu(rank)?;
/// let collectives = Collectives::new(&comm, &gpu)?;
/// let stream = gpu.stream()?;
///
/// let numbers = DeviceSlice::<f32>::new(&gpu.allocate(4096)?)?;
/// numbers.write(&[1.0 + rank as f32; 1024])?;
/// collectives.all_reduce(&numbers, &numbers, ReduceOp::Sum, &stream)?;
/// collectives.synchronize(&stream)?;
/// assert_eq!(numbers.read()?, [3.0; 1024]);
/// # comm.bootstrap().barrier()?;
/// # Ok(())
/// # }));
/// # for rank in ranks.collect::<Vec<_>>() { rank.join().expect("a rank panicked")?; }
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "cuda-ipc"))]
/// # fn main() {}
/// ```
#[derive(Clone)]
pub struct Collectives {
    pub(crate) inner: Arc<CollectivesState>,
}

impl Collectives {
    /// Those of all ranks of `comm`, on `gpu`, with the usual options. Every rank makes this call; it blocks until
    /// all do.
    ///
    /// # Errors
    /// As [`CollectivesBuilder::connect`].
    pub fn new(comm: &Communicator, gpu: &Gpu) -> Result<Self> {
        Self::builder(comm, gpu).connect()
    }

    /// With options, or of some ranks only.
    pub fn builder(comm: &Communicator, gpu: &Gpu) -> CollectivesBuilder {
        CollectivesBuilder::new(comm, gpu)
    }

    pub(crate) fn of(inner: CollectivesState) -> Self {
        Self { inner: Arc::new(inner) }
    }

    /// This rank's number among those that take part.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.inner.group.rank
    }

    /// How many ranks take part.
    #[must_use]
    pub fn n_ranks(&self) -> usize {
        self.inner.group.ranks.len()
    }

    /// The device of this rank.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.inner.gpu
    }

    /// How much device memory it takes on this device, in bytes.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        let scratch = match &self.inner.engine {
            Engine::Memory(mapped) => mapped.memory.len(),
            Engine::Ports(ports) => ports.device_bytes(),
            Engine::Nodes(nodes) => nodes.device_bytes(),
        };
        scratch + self.inner.counters.buffer.len()
    }

    /// Groups of these ranks: those that give the same `color` become one, in the order of their `key`, ranks with
    /// the same key in their present order. A rank without a color gets none. Every rank makes this call; it blocks
    /// until all do. Other options are as here.
    ///
    /// # Errors
    /// As [`CollectivesBuilder::connect`].
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Self>> {
        let inner = &self.inner;
        let own = [color.map_or(0, |color| 1 + u64::from(color)), u64::from(key.cast_unsigned())];
        let (all, set_up) = {
            let mut splits = inner.splits.lock();
            let set_up = inner.group.telling(Purpose::Part(*splits));
            *splits += 1;
            (inner.group.telling(Purpose::Split).all_gather(own)?, set_up.tag)
        };
        let keys = all.iter().enumerate().map(|(r, [_, key])| Ok(inner.group.u32_of(r, *key)?.cast_signed()));
        let keys = keys.collect::<Result<Vec<i32>>>()?;
        if color.is_none() {
            return Ok(None);
        }
        let mut members: Vec<usize> = (0..all.len()).filter(|r| all[*r][0] == own[0]).collect();
        members.sort_by_key(|r| keys[*r]);
        let mut builder = Self::builder(&inner.comm, &inner.gpu)
            .ranks(members.iter().map(|r| inner.group.ranks[*r]))
            .calls_at_once(inner.calls_at_once)
            .overlap(inner.overlap)
            .scratch(inner.scratch_bytes)
            .tag(set_up)
            .check_calls(inner.check_calls)
            .shared_selector(inner.selector.clone())
            .shared_algorithms(inner.algorithms.clone());
        if let Some(blocks) = inner.requested_max_blocks {
            builder = builder.max_blocks(blocks);
        }
        match &inner.engine {
            Engine::Memory(_) => {}
            Engine::Ports(ports) => builder = builder.by_ports(ports.transport()),
            Engine::Nodes(nodes) => {
                builder = builder.between_nodes(nodes.transport()).connections(nodes.connections());
                builder = builder.nodes_model(nodes.model());
            }
        }
        if let Some(node) = &inner.node {
            builder = builder.node(node);
        }
        if let Some(timeout) = inner.timeout {
            builder = builder.timeout(timeout);
        }
        builder.connect().map(Some)
    }

    /// Puts collectives into `stream`, as a group: no request may give what another one takes. Small `all_reduce`s of one type
    /// and operation that follow each other go in one launch, as long as a rank sends no more than 256 KiB in it.
    /// [Sends](crate::Kind::Send) and [receives](crate::Kind::Recv) go all together, after the others. So a rank may both send to
    /// and receive from a peer, in whatever order the two give these. All ranks give the others in the same order, divided alike
    /// into calls of this method. Does not block on other ranks.
    ///
    /// # Safety
    /// Addresses are memory that this rank's device reaches, of the size that follows from kind, count and type, and
    /// live until the calls are complete; of captured ones, as long as the graph. Results overlap nothing else that any request
    /// gives or takes, but as [`Request::recv`] says.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for requests that can never be right, and a stream of another device: then nothing
    /// is put into the stream. [`Error::Failed`] after a rank was lost or these collectives were aborted.
    /// [`Error::Below`] if a launch fails; other ranks may then wait for this one until it leaves or aborts.
    pub unsafe fn enqueue(&self, requests: &[Request<'_>], stream: &Stream) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.submit(requests, stream, &[]) }
    }

    /// Does the same as [`Self::enqueue`], and keeps `buffers` until the calls are complete.
    ///
    /// # Safety
    /// The same as of [`Self::enqueue`], but that memory in `buffers` lives long enough.
    pub(crate) unsafe fn submit(
        &self,
        requests: &[Request<'_>],
        stream: &Stream,
        buffers: &[&DeviceBuffer],
    ) -> Result<()> {
        let inner = &*self.inner;
        self.check_callable(stream)?;
        if let Engine::Nodes(nodes) = &inner.engine {
            // SAFETY: the caller's promise.
            return unsafe { nodes.submit(inner, requests, stream, buffers) };
        }
        let mut messages = Messages::new(self.n_ranks());
        let mut exchanges = Vec::with_capacity(requests.len());
        for request in requests {
            match inner.planned(request)? {
                Planned::Nothing => {}
                Planned::Exchange(plan) => exchanges.push((request, plan)),
                Planned::Message { receives, peer, memory, bytes } => {
                    messages.add(peer, receives, Message { memory, bytes });
                }
            }
        }
        let own = messages.own(self.rank())?;

        let mut order = inner.order.lock();
        order.before(stream)?;
        // SAFETY: the caller's promise.
        let put = unsafe { self.put(&exchanges, &own, &messages, stream, buffers) };
        // What is in the stream comes before calls in others, also if something behind it failed.
        order.after(stream)?;
        put
    }

    /// Puts what was planned into the stream.
    ///
    /// # Safety
    /// As for [`Self::submit`].
    unsafe fn put(
        &self,
        exchanges: &[RequestAndPlan<'_, '_>],
        own: &[(Message, Message)],
        messages: &Messages,
        stream: &Stream,
        buffers: &[&DeviceBuffer],
    ) -> Result<()> {
        let inner = &*self.inner;
        let mut rest = exchanges;
        while !rest.is_empty() {
            let (next, others) = rest.split_at(inner.together(rest));
            rest = others;
            if let (Engine::Memory(mapped), 2..) = (&inner.engine, next.len())
                // SAFETY: the caller's promise.
                && unsafe { inner.all_reduce_together(mapped, next, stream, buffers)? }
            {
                continue;
            }
            for (request, plan) in next {
                // SAFETY: the caller's promise.
                unsafe { inner.exchange(Some(request), plan, stream, buffers)? };
            }
        }
        for (from, to) in own {
            // SAFETY: the caller's promise.
            unsafe { stream.copy(to.memory, from.memory, from.bytes)? };
        }
        for batch in messages.batches(self.rank()) {
            // SAFETY: the caller's promise.
            unsafe { inner.move_messages(batch, stream, buffers)? };
        }
        Ok(())
    }

    /// How a collective would be done: which protocol, and with how many blocks, each of which takes a multiprocessor.
    /// None if no kernel is needed, for messages between two ranks, for what an [`Algorithm`](crate::Algorithm) of the
    /// program does, and where all goes [by ports](CollectivesBuilder::by_ports).
    ///
    /// # Errors
    /// As [`Collectives::enqueue`], for requests that can never be right.
    pub fn selection(&self, request: &Request<'_>) -> Result<Option<Selection>> {
        let inner = &*self.inner;
        Ok(match (inner.planned(request)?, &inner.engine) {
            (Planned::Exchange(plan), Engine::Memory(mapped)) if self.n_ranks() > 1 => {
                let query = inner.query(mapped, &plan, inner.copy_engines(&plan).is_some());
                match inner.own_launch(mapped, request, &query) {
                    None => Some(inner.choose(&query)),
                    Some(_) => None,
                }
            }
            _ => None,
        })
    }

    /// How long a collective takes on GPUs that have nothing else to do, by the same prediction by which protocols are
    /// chosen where nothing was measured: see [`Tuned`](crate::Tuned). None on simulated devices, for messages between
    /// two ranks, and where nothing travels.
    ///
    /// # Errors
    /// As [`Collectives::selection`].
    pub fn prediction(&self, request: &Request<'_>) -> Result<Option<Duration>> {
        let (inner, ranks) = (&*self.inner, self.n_ranks());
        Ok(match (inner.planned(request)?, &inner.engine) {
            (Planned::Exchange(plan), Engine::Memory(mapped))
                if ranks > 1 && mapped.devices != Devices::Sim =>
            {
                let query = inner.query(mapped, &plan, inner.copy_engines(&plan).is_some());
                let selection = inner.choose(&query);
                let microseconds = model::time(&query, selection.protocol, selection.two_steps);
                Duration::try_from_secs_f64(microseconds * 1e-6).ok()
            }
            _ => None,
        })
    }

    /// Waits until all work of `stream` is complete, and says what became of its collectives. With
    /// [`CollectivesBuilder::timeout`], it aborts them after that time.
    ///
    /// # Errors
    /// [`Error::Failed`] if a rank was lost, or somebody aborted: results are not valid. Errors of the work of the
    /// stream.
    pub fn synchronize(&self, stream: &Stream) -> Result<()> {
        let done = match self.inner.timeout {
            Some(timeout) => stream.synchronize_or_abort(timeout, self),
            None => stream.synchronize().map_err(Error::from),
        };
        if matches!(done, Err(Error::Failed { .. })) {
            // It was looked at already, and to look for the reason again takes up to a second.
            return done;
        }
        // What failed is known here better than below.
        self.check_waits()?;
        done
    }

    /// Whether all calls that were made are complete, but for those in graphs. Does not block.
    ///
    /// # Errors
    /// [`Error::Below`] if the work in a stream failed.
    pub fn is_idle(&self) -> Result<bool> {
        self.inner.order.lock().is_complete()
    }

    /// Checks that the waits of complete calls got what they waited for. A rank that is done may have left.
    fn check_waits(&self) -> Result<()> {
        self.check_mismatch()?;
        self.inner.check_waits().map_err(|error| self.failed(error))
    }

    /// Checks that no rank made another call, and no two calls ran at the same time.
    fn check_mismatch(&self) -> Result<()> {
        let inner = &*self.inner;
        let Engine::Memory(mapped) = &inner.engine else { return Ok(()) };
        // Pairs with the kernel's release, in front of which it has seen the other's words.
        let found = mapped.mismatch.word(0)?.load(Ordering::Acquire);
        if found == OVERLAP {
            return Err(Error::Overlap { rank: inner.group.ranks[inner.group.rank] });
        }
        let Some(other) = (found & 0xffff).checked_sub(1) else { return Ok(()) };
        let parity = found >> 16 & 1;
        if found & NO_PLACE != 0 {
            return Err(inner.no_place(mapped, other as usize, parity)?);
        }
        let said = |of: u32| -> Result<String> {
            let mut words = [0u64; 2];
            let index = 2 * u64::from(of) + u64::from(parity);
            mapped.memory.read_params(mapped.layout.parts.checks + index * LINE, &mut words)?;
            Ok(described(words))
        };
        Err(Error::Mismatch {
            rank: inner.group.ranks[inner.group.rank],
            other: inner.group.ranks[other as usize],
            ours: said(mapped.handle.rank)?,
            theirs: said(other)?,
        })
    }

    fn failed(&self, error: impl Into<mscclpp::Error>) -> Error {
        let source = Box::new(self.inner.comm.explain(error));
        Error::Failed { rank: self.inner.comm.bootstrap().rank(), source }
    }

    /// Gives up: calls that wait for other ranks end within about a millisecond, and no more can be made. Does not
    /// block. Other ranks are not told; [`Communicator::abort`] tells them.
    pub fn abort(&self, reason: &str) {
        // The first reason stays. A semaphore whose peer has left does not take this one.
        let _ = self.inner.aborted.set(reason.to_owned());
        self.inner.semaphores().for_each(|semaphore| semaphore.abort(reason));
    }

    /// Checks that a call can be put into `stream`.
    pub(crate) fn check_callable(&self, stream: &Stream) -> Result<()> {
        self.check_usable()?;
        let gpu = &self.inner.gpu;
        if stream.gpu().id() != gpu.id() || stream.gpu().platform() != gpu.platform() {
            return Err(Error::InvalidArgument(format!(
                "a stream of {} for the collectives of {gpu}",
                stream.gpu()
            )));
        }
        Ok(())
    }

    /// Checks that no rank is lost, and that nobody has aborted these collectives. A rank that has left may have sent
    /// all that is still to come.
    pub(crate) fn check_usable(&self) -> Result<()> {
        self.check_mismatch()?;
        for semaphore in self.inner.semaphores() {
            match semaphore.failure() {
                None => {}
                Some(CoreError::PeerClosed { .. }) => {
                    self.inner.check_waits().map_err(|error| self.failed(error))?;
                }
                Some(failure) => {
                    // The ranks of this node may wait for the call that is refused here.
                    if let Engine::Nodes(nodes) = &self.inner.engine {
                        nodes.tell_failure();
                    }
                    return Err(self.failed(failure));
                }
            }
        }
        let aborted = self.inner.aborted.get();
        aborted.map_or(Ok(()), |reason| Err(self.failed(CoreError::Aborted { reason: reason.clone() })))
    }
}

/// Aborts the waits of its calls for other ranks.
impl Abort for Collectives {
    type Error = Error;

    fn abort(&self, reason: &str) {
        Self::abort(self, reason);
    }

    fn check(&self) -> Result<()> {
        self.check_waits()
    }

    fn peers(&self) -> Vec<String> {
        self.inner.owner.peers()
    }

    fn waits(&self) -> Vec<KernelWait> {
        self.inner.owner.waits()
    }
}

impl fmt::Debug for Collectives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collectives")
            .field("rank", &self.rank())
            .field("ranks", &self.inner.group.ranks)
            .field("gpu", &self.inner.gpu.to_string())
            .finish_non_exhaustive()
    }
}

/// Any thread may make calls.
const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Collectives>();
};

#[cfg(all(test, feature = "cuda-ipc"))]
mod tests {
    use std::sync::Arc;

    use mscclpp::{Context, ContextExt, LocalBootstrap, Platform};

    use super::*;

    #[test]
    fn a_group_asks_for_what_all_asked_for() {
        let bootstrap = LocalBootstrap::group(1).remove(0);
        let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(Platform::Sim));
        let gpu = comm.context().gpu(0).unwrap();
        let asked = |collectives: &Collectives| {
            let CollectivesState { requested_max_blocks, calls_at_once, overlap, scratch_bytes, .. } =
                *collectives.inner;
            (requested_max_blocks, calls_at_once, overlap, scratch_bytes)
        };
        let usual = Collectives::new(&comm, &gpu).unwrap();
        let builder = Collectives::builder(&comm, &gpu).max_blocks(3).calls_at_once(5).scratch(1 << 20);
        let other = builder.overlap(true).connect().unwrap();
        for (all, expected) in [(usual, (None, 2, false, 16 << 20)), (other, (Some(3), 5, true, 1 << 20))] {
            let group = all.split(Some(0), 0).unwrap().expect("a group");
            assert_eq!([asked(&all), asked(&group)], [expected; 2]);
        }
    }
}
