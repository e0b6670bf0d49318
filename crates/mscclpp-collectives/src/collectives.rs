//! The collectives of one rank: calls in, launches out.

use std::{
    cell::Cell,
    sync::Arc,
    time::{Duration, Instant},
};

use mscclpp::{
    DeviceBuffer, Event, Gpu, Stream,
    engine::LastCall,
    errors::CoreError,
    gpu::{Abort, KernelWait},
};

use crate::{
    Error, Request, Result,
    choice::{Selection, Selector},
    plan::{Calls, Plan},
    rank::{Call, Engine, Publisher, RankState, Watch},
};

/// The collectives of a rank with others, each on a device of its own or several on one: as threads of one process, as processes,
/// or on [several nodes](crate::CollectivesBuilder::between_nodes). Clones are the same.
///
/// Every rank makes the same calls in the same order, with the same counts, types, operations and roots; only
/// [send](Self::send) and [receive](Self::recv) are of two ranks alone. A call puts one kernel into a stream, or a few
/// with ranks on several nodes, and returns: it does not wait for other ranks, but where the driver's queue of
/// launches is full. Results are there when the stream has come so far. Calls run in the order in which
/// they are made, also on different streams. The program itself orders graphs with captured calls, and whatever runs
/// beside them. Calls may be captured in graphs, and replayed any number of times, as long as all
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
/// # use mscclpp_collectives::Result;
/// # let ranks = LocalBootstrap::group(2).into_iter().map(|bootstrap| std::thread::spawn(move || -> Result<()> {
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
    /// The publisher, which is dropped first, because it uses the other members. None if peers write into no memory of the
    /// program.
    pub(crate) publisher: Option<Arc<Publisher>>,
    pub(crate) rank: Arc<RankState>,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) watch: Arc<Watch>,
}

impl Collectives {
    /// This rank's number among those that take part.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank.rank()
    }

    /// How many ranks take part.
    #[must_use]
    pub fn n_ranks(&self) -> usize {
        self.rank.n_ranks()
    }

    /// The device of this rank.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.rank.gpu
    }

    /// How much device memory it takes on this device, in bytes.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        self.engine.device_bytes() + self.rank.counters.buffer.len()
    }

    /// The number of nodes that the ranks are on. Devices that do not reach each other's memory are nodes of their own.
    #[must_use]
    pub fn n_nodes(&self) -> usize {
        self.engine.n_nodes()
    }

    /// Puts collectives into `stream`, as a group: no request may give what another one takes. On one node, requests that move,
    /// of whatever kinds and types, go in one launch, but for messages of more than 32 MiB, and for an `all_to_all` with counts
    /// if memory is registered. Those that reduce by one type and operation go in one launch between two ranks, if their
    /// messages have up to 32 MiB. Between more ranks, small ones go together as long as a rank sends no more than 256 KiB, and
    /// three or more with messages of up to 1 MiB, of which `all_reduce`s have a launch of their own. Larger ones go one by one,
    /// which takes less time.
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
        unsafe { self.submit(requests, self.call(stream, &[])) }
    }

    /// Puts collectives into `stream`, as [`Self::enqueue`] does. `selector` chooses how they are done, in place of the
    /// selector of these collectives: it gives the same answers on all ranks.
    ///
    /// # Safety
    /// The same as of [`Self::enqueue`].
    ///
    /// # Errors
    /// The same as of [`Self::enqueue`].
    pub unsafe fn enqueue_with(
        &self,
        requests: &[Request<'_>],
        stream: &Stream,
        selector: &dyn Selector,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.submit(requests, Call { selector, ..self.call(stream, &[]) }) }
    }

    /// Puts collectives into `stream`, as [`Self::enqueue_with`] does, and records `event` when the first kernel of them has
    /// begun ([`Kernel::launch_recording`](mscclpp::Kernel::launch_recording)), or behind them if they need no kernel. Each rank
    /// has an event or not.
    ///
    /// # Safety
    /// The same as of [`Self::enqueue`].
    ///
    /// # Errors
    /// The same as of [`Self::enqueue`].
    pub unsafe fn enqueue_recording(
        &self,
        requests: &[Request<'_>],
        stream: &Stream,
        selector: Option<&dyn Selector>,
        event: &Event,
    ) -> Result<()> {
        let begun = Cell::new(Some(event.clone()));
        let call = Call { begun: Some(&begun), ..self.call(stream, &[]) };
        let call = selector.map_or(call, |selector| Call { selector, ..call });
        // SAFETY: the caller's promise.
        unsafe { self.submit(requests, call)? };
        Ok(begun.take().map_or(Ok(()), |event| stream.record(&event))?)
    }

    /// A call into `stream` that keeps `buffers`.
    pub(crate) fn call<'a>(&'a self, stream: &'a Stream, buffers: &'a [&'a DeviceBuffer]) -> Call<'a> {
        Call { stream, buffers, selector: &*self.rank.options.selector, begun: None }
    }

    /// Plans requests, and puts them into the stream of `call`. Keeps its buffers until the calls are complete.
    ///
    /// # Safety
    /// The same as of [`Self::enqueue`], but that memory in the buffers lives long enough.
    pub(crate) unsafe fn submit(&self, requests: &[Request<'_>], call: Call<'_>) -> Result<()> {
        let (rank, engine, stream) = (&*self.rank, &*self.engine, call.stream);
        self.check_callable(stream)?;
        let barrier = rank.barrier(engine.barrier());
        let calls = Calls::new(requests, rank.rank(), rank.n_ranks(), &barrier)?;

        rank.order.put(stream, || {
            self.watch.calls(requests)?;
            // SAFETY: the caller's promise.
            unsafe { engine.exchange(rank, &calls.exchanges, &call)? };
            for (from, to) in &calls.own {
                // SAFETY: the caller's promise.
                unsafe { stream.copy(to.memory, from.memory, from.bytes)? };
            }
            // SAFETY: the caller's promise.
            unsafe { engine.move_messages(rank, &calls.messages, &call) }
        })
    }

    /// The plan of a request, if it is an exchange that moves something between ranks.
    fn plan(&self, request: &Request<'_>) -> Result<Option<Plan>> {
        let barrier = self.rank.barrier(self.engine.barrier());
        let calls = Calls::new(std::slice::from_ref(request), self.rank(), self.n_ranks(), &barrier)?;
        let exchange = calls.exchanges.into_iter().next().filter(|_| self.n_ranks() > 1);
        Ok(exchange.map(|(_, plan)| plan))
    }

    /// How a collective would be done: which protocol, and with how many blocks, each of which takes a multiprocessor.
    /// None if no kernel is needed, for messages between two ranks, for calls that an [`Algorithm`](crate::Algorithm) of the
    /// program does, and between nodes.
    ///
    /// # Errors
    /// The same as of [`Collectives::enqueue`], for requests that can never be right.
    pub fn selection(&self, request: &Request<'_>) -> Result<Option<Selection>> {
        self.selection_with(request, &*self.rank.options.selector)
    }

    /// The same as [`Collectives::selection`], for [`Collectives::enqueue_with`] with this selector.
    ///
    /// # Errors
    /// The same as of [`Collectives::selection`].
    pub fn selection_with(
        &self,
        request: &Request<'_>,
        selector: &dyn Selector,
    ) -> Result<Option<Selection>> {
        let Some(plan) = self.plan(request)? else { return Ok(None) };
        Ok(self.engine.selection(&self.rank, request, &plan, selector))
    }

    /// The time that a collective takes on GPUs that have nothing else to do, by the same prediction by which protocols are
    /// chosen where nothing was measured: see [`Tuned`](crate::Tuned). None on simulated devices, between nodes, for messages
    /// between two ranks, and where nothing travels.
    ///
    /// # Errors
    /// The same as of [`Collectives::selection`].
    pub fn prediction(&self, request: &Request<'_>) -> Result<Option<Duration>> {
        let Some(plan) = self.plan(request)? else { return Ok(None) };
        Ok(self.engine.prediction(&self.rank, &plan))
    }

    /// Whether the ranks compare their calls: see [`CollectivesBuilder::check_calls`](crate::CollectivesBuilder::check_calls).
    #[must_use]
    pub fn compares_calls(&self) -> bool {
        self.rank.options.checks()
    }

    /// Waits until all work of `stream` is complete, and says what became of its collectives. If the ranks compare their calls,
    /// it first waits until all have made those that this rank has made. With
    /// [`CollectivesBuilder::timeout`](crate::CollectivesBuilder::timeout), it aborts them after that time.
    ///
    /// # Errors
    /// [`Error::Failed`] if a rank was lost, or somebody aborted: results are not valid. Errors of the work of the
    /// stream.
    pub fn synchronize(&self, stream: &Stream) -> Result<()> {
        let begin = Instant::now();
        if let Err(error) = self.watch.compare(self.rank.options.timeout, || self.check_usable()) {
            let Error::Below(late) = error else { return Err(error) };
            Abort::abort(self, &late.to_string());
            return Err(self.failed(late));
        }
        let done = match self.rank.options.timeout {
            Some(timeout) if self.rank.options.checks() => {
                stream.synchronize_or_abort(timeout.saturating_sub(begin.elapsed()), self)
            }
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
        Ok(self.rank.order.is_complete()?)
    }

    /// The last call that was made and is not in a graph, and whether it is under way. Does not block.
    #[must_use]
    pub fn last_call(&self) -> LastCall {
        self.rank.order.last()
    }

    /// Checks that all ranks made the same calls, as far as that is known.
    fn check_calls(&self) -> Result<()> {
        self.watch.check()?;
        if let Some(lengths) = self.engine.other_length(&self.rank)? {
            return self.watch.other_length(lengths);
        }
        self.engine.check_mismatch(&self.rank)
    }

    /// Checks that the waits of complete calls got what they waited for. A rank that is done may have left.
    fn check_waits(&self) -> Result<()> {
        self.check_calls()?;
        self.engine.check_waits().map_err(|error| self.failed(error))
    }

    /// The error of calls that failed with `error`. A rank that has left may have told before that calls differ: then that is
    /// the error.
    fn failed(&self, error: impl Into<mscclpp::Error>) -> Error {
        if let Err(differ) = self.watch.hear() {
            return differ;
        }
        let source = Box::new(self.rank.comm.explain(error));
        Error::Failed { rank: self.rank.comm.bootstrap().rank(), source }
    }

    /// Gives up: calls that wait for other ranks end within about a millisecond, and no more can be made. Does not
    /// block. Other ranks are not notified; [`Communicator::abort`](mscclpp::Communicator::abort) tells them.
    pub fn abort(&self, reason: &str) {
        // The first reason stays. A semaphore whose peer has left does not take this one.
        let _ = self.rank.aborted.set(reason.to_owned());
        self.engine.semaphores().for_each(|semaphore| semaphore.abort(reason));
    }

    /// Checks that a call can be put into `stream`.
    pub(crate) fn check_callable(&self, stream: &Stream) -> Result<()> {
        self.check_usable()?;
        self.check_resumed()?;
        self.expect_device("a stream", stream.gpu())
    }

    /// Checks that no rank is lost, and that nobody has aborted these collectives. A rank that has left may have sent
    /// all that is still to come.
    pub(crate) fn check_usable(&self) -> Result<()> {
        self.check_calls()?;
        for semaphore in self.engine.semaphores() {
            match semaphore.failure() {
                None => {}
                Some(CoreError::PeerClosed { .. }) => {
                    self.engine.check_waits().map_err(|error| self.failed(error))?;
                }
                Some(failure) => {
                    // The ranks of this node may wait for the call that is refused here.
                    self.engine.tell_failure();
                    return Err(self.failed(failure));
                }
            }
        }
        let aborted = self.rank.aborted.get();
        aborted.map_or(Ok(()), |reason| Err(self.failed(CoreError::Aborted { reason: reason.clone() })))
    }
}

/// Aborts the waits of its calls for other ranks.
impl Abort for Collectives {
    type Error = Error;

    /// Aborts after a time-out, whose cause may be calls that differ.
    fn abort(&self, reason: &str) {
        let advice = match self.rank.options.checks() {
            true => "",
            false => {
                "; a rank may have made another call, or one with another type or size: to find it, set MSCCLPP_CHECK_CALLS=1 on \
                 all ranks (or check_calls)"
            }
        };
        Self::abort(self, &format!("{reason}{advice}"));
    }

    fn check(&self) -> Result<()> {
        self.check_waits()
    }

    fn peers(&self) -> Vec<String> {
        self.engine.owner().peers()
    }

    fn waits(&self) -> Vec<KernelWait> {
        self.engine.owner().waits()
    }
}

mscclpp_os::debug_fields!(Collectives, |this|
    rank: this.rank(), ranks: this.rank.group.ranks(), gpu: this.rank.gpu.to_string(), ..
);

/// Any thread may make calls.
const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Collectives>();
};
