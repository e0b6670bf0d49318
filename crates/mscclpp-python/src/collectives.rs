//! The collectives of `mscclpp-collectives`, called with addresses. The Python layer (`_collectives.py`) takes
//! arrays.

use std::sync::atomic::{AtomicU32, Ordering};

use mscclpp::{
    Communicator, DevicePtr, Platform, Stream,
    engine::LastCall,
    gpu::{Abort as _, PinnedBuffer},
};
use mscclpp_collectives::{Collectives, CollectivesBuilder, DataType, Error, Published, Registered, Request};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::{
    communicator::PyCommunicator,
    device,
    error::{self, OrRaise},
    kernel::PyKernel,
    owned::{Owned, closable},
    point::{Behind, PyPoint},
    protocols::Override,
    requests::{AllAsked, Asked, Maker, Numbers},
    rows::{Argument, GivenOutput, GivenRows, RowsCall},
    simulated::{self, Copies, KeptCopies},
    waiting,
};

/// Collectives of all ranks of a communicator.
#[pyclass(name = "_Collectives", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyCollectives {
    inner: Owned<Made>,
}

/// The collectives, and the communicator that they were made with.
struct Made {
    collectives: Collectives,
    communicator: Communicator,
    copies: KeptCopies,
    /// Pinned memory for `counts_to_host`, which no call uses.
    pinned: Mutex<Vec<PinnedBuffer<AtomicU32>>>,
}

closable!(PyCollectives, inner);

impl PyCollectives {
    fn of(collectives: Collectives, communicator: Communicator) -> Self {
        Self {
            inner: Owned::that_may_wait(
                "Collectives",
                Made { collectives, communicator, copies: KeptCopies::default(), pinned: Mutex::default() },
            ),
        }
    }
}

/// A registration of memory. It ends when this object is dropped or given to `_Collectives.deregister`.
#[pyclass(name = "_Registered", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyRegistered(Mutex<Option<Registered>>);

/// Memory that a rank has published, until this object is dropped.
#[pyclass(name = "_Published", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyPublished(Published);

#[pymethods]
impl PyPublished {
    /// Whether all other ranks have mapped it.
    #[getter]
    fn is_ready(&self) -> bool {
        self.0.is_ready()
    }
}

#[pymethods]
impl PyCollectives {
    /// Makes collectives of all ranks of a communicator. All ranks call it, and it blocks until they have.
    #[new]
    #[pyo3(signature = (communicator, device, max_blocks = None, scratch = None, calls_at_once = None, timeout_sec = None, check_calls = None, overlap = false))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords")]
    fn new(
        py: Python<'_>,
        communicator: &PyCommunicator,
        device: usize,
        max_blocks: Option<u32>,
        scratch: Option<u64>,
        calls_at_once: Option<u32>,
        timeout_sec: Option<f64>,
        check_calls: Option<bool>,
        overlap: bool,
    ) -> PyResult<Self> {
        let communicator = communicator.waited()?;
        let gpu = communicator.context().gpu(device).or_raise()?;
        let timeout = timeout_sec.map(waiting::seconds).transpose()?;
        let builder = Collectives::builder(&communicator, &gpu).overlap(overlap);
        let builder = check_calls.into_iter().fold(builder, CollectivesBuilder::check_calls);
        let builder = max_blocks.into_iter().fold(builder, CollectivesBuilder::max_blocks);
        let builder = scratch.into_iter().fold(builder, CollectivesBuilder::scratch);
        let builder = calls_at_once.into_iter().fold(builder, CollectivesBuilder::calls_at_once);
        let builder = timeout.into_iter().fold(builder, CollectivesBuilder::timeout);
        let collectives = waiting::outcome(py, move || builder.connect())?.map_err(raised)?;
        Ok(Self::of(collectives, communicator))
    }

    /// The number of this rank.
    #[getter]
    fn rank(&self) -> PyResult<usize> {
        Ok(self.inner.get()?.collectives.rank())
    }

    /// The number of ranks.
    #[getter]
    fn size(&self) -> PyResult<usize> {
        Ok(self.inner.get()?.collectives.n_ranks())
    }

    /// The number of the device.
    #[getter]
    fn device(&self) -> PyResult<usize> {
        Ok(self.inner.get()?.collectives.gpu().id())
    }

    /// Whether the device is simulated.
    #[getter]
    fn is_simulated(&self) -> PyResult<bool> {
        Ok(self.inner.get()?.collectives.gpu().platform() == Platform::Sim)
    }

    /// Puts collectives into a stream. A request is a tuple of kind, address of the input, address of the output,
    /// count, type, operation, and root or peer; a `_Requests` stands for several. The call waits for no other rank.
    /// Messages between two ranks are launched together. Returns whether all work of a simulated device was complete before.
    ///
    /// All ranks may name the same `protocol` ("ll16", "ll128", "simple", "two_steps", "two_steps_ll128" or "any"),
    /// number of blocks, and number of threads in each; 0 stands for the selected number. If the protocol is not
    /// possible for a call, another one is used.
    ///
    /// The calls wait for the work that the streams `others` have now, and later work of these streams waits for the
    /// calls.
    #[pyo3(signature = (requests: "list[Any]", stream: "int", protocol = None, blocks = 0, threads = 0, others: "list[int]" = Vec::new()))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords")]
    fn enqueue(
        &self,
        py: Python<'_>,
        requests: AllAsked,
        stream: usize,
        protocol: Option<&str>,
        blocks: u32,
        threads: u32,
        others: Vec<usize>,
    ) -> PyResult<bool> {
        let made = self.inner.get()?;
        let selector = Override::new(protocol, blocks, threads)?;
        let enqueue = || {
            let gpu = made.collectives.gpu();
            let stream = device::stream(gpu, stream)?;
            let others =
                others.iter().map(|other| device::stream(gpu, *other)).collect::<Result<Vec<_>, _>>()?;
            let requests: Vec<Request<'_>> = requests.0.iter().map(Asked::request).collect();
            stream.join(&others.iter().collect::<Vec<_>>(), || {
                if made.collectives.gpu().platform() == Platform::Sim {
                    let was_idle = made.copies.forget_if_idle(&stream)?;
                    // SAFETY: the program gives memory of the process, and keeps it until the calls are complete.
                    let copies =
                        unsafe { simulated::enqueue(&made.collectives, &requests, &stream, &selector)? };
                    made.copies.keep(copies);
                    return Ok(was_idle);
                }
                // SAFETY: the program gives memory of the device, and keeps it until the calls are complete.
                unsafe { made.collectives.enqueue_with(&requests, &stream, &selector)? };
                Ok(false)
            })
        };
        py.detach(enqueue).map_err(raised)
    }

    /// Puts collectives into a stream of a GPU, as `enqueue` does, when the work that is `behind` is complete: the present work
    /// of other streams, or what is before points. Returns the point behind the collectives.
    #[pyo3(signature = (requests: "list[Any]", stream: "int", behind: "list[int | _Point]"))]
    fn enqueue_behind(
        &self,
        py: Python<'_>,
        requests: AllAsked,
        stream: usize,
        behind: Vec<Behind>,
    ) -> PyResult<PyPoint> {
        let made = self.inner.get()?;
        let enqueue = || {
            let stream = device::stream(made.collectives.gpu(), stream)?;
            behind.iter().try_for_each(|behind| behind.hold(&stream))?;
            if !requests.0.is_empty() {
                let requests: Vec<Request<'_>> = requests.0.iter().map(Asked::request).collect();
                // SAFETY: the program gives memory of the device, and keeps it until the calls are complete.
                unsafe { made.collectives.enqueue(&requests, &stream)? };
            }
            Ok(PyPoint::end_of(&stream)?)
        };
        py.detach(enqueue).map_err(raised)
    }

    /// Puts one collective of tensors of PyTorch into a stream of a GPU: see `_Requests.of_tensors`. With `behind` it waits for
    /// the present work of that stream.
    ///
    /// Returns the point behind the collective if `behind` is given, else True. Returns None, and does nothing, for tensors that
    /// are empty or for which `_Requests.of_tensors` returns None.
    #[pyo3(signature = (kind, given, taken, parts, numbers, root, stream: "int", behind: "int | None", /) -> "_Point | bool | None")]
    #[allow(clippy::too_many_arguments, reason = "they are those of a request, and where it goes")]
    fn enqueue_tensors(
        &self,
        py: Python<'_>,
        kind: &str,
        given: &Bound<'_, PyAny>,
        taken: &Bound<'_, PyAny>,
        parts: (u64, u64),
        numbers: Numbers<'_>,
        root: usize,
        stream: usize,
        behind: Option<usize>,
    ) -> PyResult<Option<Put>> {
        let Some(mut maker) = Maker::new(py, kind, parts, numbers, root)? else { return Ok(None) };
        let Some(asked) = maker.request(given, taken)?.filter(|asked| !asked.is_empty()) else {
            return Ok(None);
        };
        let made = self.inner.get()?;
        let enqueue = || {
            let stream = device::stream(made.collectives.gpu(), stream)?;
            if let Some(other) = behind {
                Behind::Stream(other).hold(&stream)?;
            }
            // SAFETY: the program gives tensors of the device, and keeps them until the call is complete.
            unsafe { made.collectives.enqueue(&[asked.request()], &stream)? };
            Ok(match behind {
                Some(_) => Put::Aside(PyPoint::end_of(&stream)?),
                None => Put::InStream(true),
            })
        };
        py.detach(enqueue).map_err(raised).map(Some)
    }

    /// The point behind the last call that is not in a graph. None if that is complete, or being made. Does not block.
    fn last_call(&self, py: Python<'_>) -> PyResult<Option<PyPoint>> {
        let made = self.inner.get()?;
        Ok(match py.detach(|| made.collectives.last_call()) {
            LastCall::UnderWay(event) => Some(PyPoint::of(made.collectives.gpu(), event)),
            LastCall::Complete | LastCall::BeingPut => None,
        })
    }

    /// Returns how `enqueue` would carry out the request: the protocol, whether in two steps, and how many blocks and
    /// threads. Returns None where no kernel is needed.
    #[pyo3(signature = (request, protocol = None, blocks = 0, threads = 0))]
    fn selection(
        &self,
        request: Asked,
        protocol: Option<&str>,
        blocks: u32,
        threads: u32,
    ) -> PyResult<Option<(String, bool, u32, u32)>> {
        let made = self.inner.get()?;
        let selector = Override::new(protocol, blocks, threads)?;
        let selection = made.collectives.selection_with(&request.request(), &selector).map_err(raised)?;
        Ok(selection.map(|it| (it.protocol.to_string(), it.two_steps, it.blocks, it.threads)))
    }

    /// Sums up rows and hands each to a kernel that was made for that: see `Collectives::all_reduce_rows` of the
    /// crate. `rows` is the address of the first row, the number of rows, the numbers in each, and their type. An
    /// output is its address, its type (None for 4 bytes for each row), and whether it stays on its rank. An argument
    /// of the kernel is its bytes, or the address and the size of memory. Returns what `enqueue` returns.
    #[pyo3(signature = (kernel, args, rows, outputs, stream: "int"))]
    fn all_reduce_rows(
        &self,
        py: Python<'_>,
        kernel: &PyKernel,
        args: Vec<Argument>,
        rows: GivenRows,
        outputs: Vec<GivenOutput>,
        stream: usize,
    ) -> PyResult<bool> {
        let made = self.inner.get()?;
        let kernel = kernel.kernel()?;
        let call = RowsCall::new(args, rows, outputs)?;
        py.detach(|| {
            let stream = device::stream(made.collectives.gpu(), stream)?;
            if made.collectives.gpu().platform() == Platform::Sim {
                let was_idle = made.copies.forget_if_idle(&stream)?;
                let mut copies = Copies::default();
                // SAFETY: the program gives memory of the process, and keeps it until the call is complete.
                let place = |at, bytes| unsafe { copies.of(&stream, at, bytes) }.map_err(Error::from);
                // SAFETY: memory of the device, or copies, which are kept until the stream is synchronised.
                let done = unsafe { call.enqueue(&made.collectives, &kernel, &stream, place) };
                let written = if done.is_ok() { call.taken() } else { Vec::new() };
                // SAFETY: the program's memory, as above.
                made.copies.keep(unsafe { copies.back(&stream, &written)? });
                return done.map(|()| was_idle);
            }
            // SAFETY: the program gives memory of the device, and keeps it until the call is complete.
            unsafe { call.enqueue(&made.collectives, &kernel, &stream, |at, _| Ok(at))? };
            Ok(false)
        })
        .map_err(raised)
    }

    /// Waits until all work of the stream is complete, at most for the timeout of the collectives, and raises an
    /// error if a collective failed.
    #[pyo3(signature = (stream: "int"))]
    fn synchronize(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        let made = self.inner.get()?;
        let stream = device::stream(made.collectives.gpu(), stream).or_raise()?;
        let compares = made.collectives.compares_calls();
        let work = move |stream: &Stream| made.collectives.synchronize(stream).map(|()| made.copies.forget());
        // A comparison also waits until the other ranks have made their calls.
        let done = match compares {
            true => waiting::outcome(py, move || work(&stream)),
            false => waiting::wait_for_stream(py, stream, work),
        };
        done?.map_err(raised)
    }

    /// Gathers the counts that a [`ChoiceCounter`](mscclpp_ep::ChoiceCounter) has stored at the address `counts`, for so many
    /// experts, and waits until the host has them. Returns the most tokens of a rank; how many tokens go from each rank to each;
    /// and how many rows come to each expert of this rank, which has an equal part of them, in order. Not in a capture.
    #[pyo3(signature = (counts, experts, stream: "int"))]
    fn counts_to_host(
        &self,
        py: Python<'_>,
        counts: u64,
        experts: usize,
        stream: usize,
    ) -> PyResult<(u32, Vec<Vec<u32>>, Vec<u32>)> {
        let made = self.inner.get()?;
        let (gpu, rank, ranks) =
            (made.collectives.gpu(), made.collectives.rank(), made.collectives.n_ranks());
        let n = 1 + ranks + experts;
        let bytes = 4 * (ranks * n) as u64;
        let kept = made.pinned.lock().pop().filter(|pinned| pinned.len() >= bytes);
        let pinned = match kept {
            Some(pinned) => pinned,
            None => gpu.allocate_pinned_words(bytes).or_raise()?,
        };
        let request = Asked::all_gather(DevicePtr(counts), pinned.ptr(), n as u64, DataType::U32);
        let put = self.enqueue(py, AllAsked(vec![request]), stream, None, 0, 0, Vec::new());
        let done = put.and_then(|_| self.synchronize(py, stream));
        if let Err(error) = done {
            // Kernels may still write into it.
            std::mem::forget(pinned);
            return Err(error);
        }
        let word = |i: usize| pinned.word(4 * i as u64).map(|word| word.load(Ordering::Relaxed));
        let all = (0..ranks * n).map(word).collect::<Result<Vec<u32>, _>>().or_raise()?;
        made.pinned.lock().push(pinned);
        let of_ranks: Vec<&[u32]> = all.chunks(n).collect();
        let most = of_ranks.iter().map(|of| of[0]).max().unwrap_or(0);
        let to_each = of_ranks.iter().map(|of| of[1..1 + ranks].to_vec()).collect();
        let local = experts / ranks;
        let own = 1 + ranks + rank * local..1 + ranks + (rank + 1) * local;
        let of_experts = own.map(|i| of_ranks.iter().map(|of| of[i]).sum()).collect();
        Ok((most, to_each, of_experts))
    }

    /// The number of the capture that a stream is part of. None if no capture is active.
    #[pyo3(signature = (stream: "int"))]
    fn capture_of(&self, stream: usize) -> PyResult<Option<u64>> {
        let made = self.inner.get()?;
        let id = device::stream(made.collectives.gpu(), stream).and_then(|stream| Ok(stream.capture_id()?));
        id.map_err(|error| raised(error.into()))
    }

    /// Raises an error if a complete call failed. Does not block.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let made = self.inner.get()?;
        py.detach(|| made.collectives.check()).map_err(raised)
    }

    /// Ends the waits of this rank's calls, and those of all other ranks' calls: gives up the job, for a part of it, too.
    fn abort(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let made = self.inner.get()?;
        py.detach(|| {
            made.collectives.abort(reason);
            made.communicator.abort(reason);
        });
        Ok(())
    }

    /// Makes collectives of those ranks that give the same color, in the order of their keys. Returns None without a
    /// color. All ranks call it.
    #[pyo3(signature = (color, key))]
    fn split(&self, py: Python<'_>, color: Option<u32>, key: i32) -> PyResult<Option<Self>> {
        let made = self.inner.get()?;
        let communicator = made.communicator.clone();
        let part = waiting::outcome(py, move || made.collectives.split(color, key))?.map_err(raised)?;
        Ok(part.map(|part| Self::of(part, communicator)))
    }

    /// Publishes memory of this rank, and waits for no other.
    fn publish(&self, address: u64, size: u64) -> PyResult<PyPublished> {
        let made = self.inner.get()?;
        // SAFETY: calls take data only into memory that the Python layer keeps for them.
        let published = unsafe { made.collectives.publish_memory(DevicePtr(address), size) };
        published.map(PyPublished).map_err(raised)
    }

    /// Registers memory on all ranks. All ranks call it together.
    fn register(&self, py: Python<'_>, address: u64, size: u64, symmetric: bool) -> PyResult<PyRegistered> {
        let made = self.inner.get()?;
        // SAFETY: the Python layer keeps the memory as long as it is registered.
        let work = move || unsafe { made.collectives.register_memory(DevicePtr(address), size, symmetric) };
        Ok(PyRegistered(Mutex::new(Some(waiting::outcome(py, work)?.map_err(raised)?))))
    }

    /// Ends a registration on all ranks. All ranks call it together.
    fn deregister(&self, py: Python<'_>, registered: &PyRegistered) -> PyResult<()> {
        let made = self.inner.get()?;
        let registered = registered.0.lock().take();
        let registered = registered.ok_or_else(|| error::misuse("this memory is not registered any more"))?;
        waiting::outcome(py, move || made.collectives.deregister(registered))?.map_err(raised)
    }
}

/// The result of `enqueue_tensors`: true for a call in a stream, or the point behind it.
#[derive(IntoPyObject)]
enum Put {
    InStream(bool),
    Aside(PyPoint),
}

fn raised(error: Error) -> PyErr {
    match &error {
        Error::Below(error) => error::raise(error),
        error => error::in_python(error.kind(), error),
    }
}
