//! The experts of `mscclpp-ep`, called with addresses. The Python layer (`ep.py`) takes arrays.

use mscclpp::{DevicePtr, Gpu, Platform, Report, Stream};
use mscclpp_ep::{
    Combine, Dispatch, Error, Experts, ExpertsBuilder, IdType, Layout, Memory, NumberType, Quantisation,
    Routed,
};
use pyo3::prelude::*;

use crate::{
    communicator::PyCommunicator,
    device,
    error::{self, OrRaise},
    owned::{Held, Owned, closable},
    simulated::{Copies, KeptCopies},
    waiting,
};

/// The experts of all ranks of a communicator, as one rank has them.
#[pyclass(name = "_Experts", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyExperts {
    inner: Owned<Made>,
}

struct Made {
    experts: Experts,
    gpu: Gpu,
    copies: KeptCopies,
}

closable!(PyExperts, inner);

/// The routing of a dispatch. It keeps the experts, whose memory it speaks of.
#[pyclass(name = "_Routed", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyRouted {
    inner: Owned<(Routed, Held<Made>)>,
}

/// The address and the size of memory.
type Given = (u64, u64);

#[pymethods]
impl PyExperts {
    /// Sets up the experts of the ranks of a communicator. All ranks call it, and it blocks until they have.
    #[new]
    #[pyo3(signature = (communicator, device, dtype, experts, top_k, hidden, capacity, expert_map, quantise, row_bytes, also, micro_batches, exact, max_blocks, calls_at_once, timeout_sec, tag, ranks))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords of the Python layer")]
    fn new(
        py: Python<'_>,
        communicator: &PyCommunicator,
        device: usize,
        dtype: &str,
        experts: usize,
        top_k: usize,
        hidden: usize,
        capacity: usize,
        expert_map: Option<Vec<usize>>,
        quantise: Option<&str>,
        row_bytes: Option<usize>,
        also: Vec<usize>,
        micro_batches: usize,
        exact: bool,
        max_blocks: Option<u32>,
        calls_at_once: Option<u32>,
        timeout_sec: Option<f64>,
        tag: Option<u32>,
        ranks: Option<Vec<usize>>,
    ) -> PyResult<Self> {
        let communicator = communicator.waited()?;
        let gpu = communicator.context().gpu(device).or_raise()?;
        let number_type = match dtype {
            "bfloat16" => NumberType::Bf16,
            "float16" => NumberType::F16,
            "float32" => NumberType::F32,
            _ => return Err(error::misuse(format!("there are no experts of numbers of type {dtype}"))),
        };
        let builder = Experts::builder(&communicator, &gpu).number_type(number_type);
        let builder = builder.experts(experts).top_k(top_k).hidden(hidden).capacity(capacity);
        let mut builder =
            also.into_iter().fold(builder.micro_batches(micro_batches).exact(exact), ExpertsBuilder::also);
        if let Some(quantise) = quantise {
            builder = builder.quantise(match quantise {
                "e4m3" => Quantisation::E4m3,
                "e4m3_ue8m0" => Quantisation::E4m3Ue8m0,
                _ => return Err(error::misuse(format!("there is no quantisation {quantise:?}"))),
            });
        }
        if let Some(map) = expert_map {
            builder = builder.expert_map(map);
        }
        if let Some(bytes) = row_bytes {
            builder = builder.row_bytes(bytes);
        }
        if let Some(blocks) = max_blocks {
            builder = builder.max_blocks(blocks);
        }
        if let Some(calls) = calls_at_once {
            builder = builder.calls_at_once(calls);
        }
        if let Some(seconds) = timeout_sec {
            builder = builder.timeout(waiting::seconds(seconds)?);
        }
        if let Some(tag) = tag {
            builder = builder.tag(tag);
        }
        if let Some(ranks) = ranks {
            builder = builder.ranks(ranks);
        }
        let experts = waited(py, move || builder.connect())?;
        let made = Made { experts, gpu, copies: KeptCopies::default() };
        Ok(Self { inner: Owned::that_may_wait("Experts", made) })
    }

    /// The number of this rank.
    #[getter]
    fn rank(&self) -> PyResult<usize> {
        Ok(self.inner.get()?.experts.rank())
    }

    /// The number of ranks.
    #[getter]
    fn n_ranks(&self) -> PyResult<usize> {
        Ok(self.inner.get()?.experts.n_ranks())
    }

    /// The number of this rank's experts.
    #[getter]
    fn n_local(&self) -> PyResult<usize> {
        Ok(self.inner.get()?.experts.n_local())
    }

    /// The device memory that this rank took, in bytes.
    #[getter]
    fn device_bytes(&self) -> PyResult<u64> {
        Ok(self.inner.get()?.experts.device_bytes())
    }

    /// Whether the device is simulated.
    #[getter]
    fn is_simulated(&self) -> PyResult<bool> {
        Ok(self.inner.get()?.gpu.platform() == Platform::Sim)
    }

    /// Sends tokens. `rows` are the tensors that travel, `out` the memory for those that come, none for the layout
    /// "rank". Returns the routing, and whether all work of a simulated device was complete before.
    #[pyo3(signature = (tokens, ids, id_bytes, weights, rows, layout, alignment, out, micro_batch, zero_rest, stream: "int"))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords of the Python layer")]
    fn dispatch(
        &self,
        py: Python<'_>,
        tokens: usize,
        ids: Given,
        id_bytes: u64,
        weights: Option<Given>,
        rows: Vec<Given>,
        layout: &str,
        alignment: u32,
        out: Vec<Given>,
        micro_batch: usize,
        zero_rest: bool,
        stream: usize,
    ) -> PyResult<(PyRouted, bool)> {
        let made = self.inner.get()?;
        let layout = match layout {
            "rank" => Layout::Rank,
            "token" => Layout::Token,
            "expert" => Layout::Expert,
            "flat" => Layout::Flat { alignment },
            _ => return Err(error::misuse(format!("there is no layout {layout:?}"))),
        };
        let (Some((first, others)), outs) = (rows.split_first(), out.split_first()) else {
            return Err(error::misuse("a dispatch without a tensor"));
        };
        let (routed, was_idle) = py
            .detach(|| {
                made.put(stream, &out, |stream, place| {
                    let mut dispatch = Dispatch::new(tokens, place(ids)?, place(*first)?)
                        .ids_of(if id_bytes == 8 { IdType::I64 } else { IdType::I32 })
                        .micro_batch(micro_batch)
                        .zero_rest(zero_rest);
                    if let Some(weights) = weights {
                        dispatch = dispatch.weights(place(weights)?);
                    }
                    for rows in others {
                        dispatch = dispatch.with(place(*rows)?);
                    }
                    if let Some((first, others)) = outs {
                        dispatch = dispatch.into(layout, place(*first)?);
                        for rows in others {
                            dispatch = dispatch.and(place(*rows)?);
                        }
                    }
                    made.experts.dispatch(&dispatch, stream)
                })
            })
            .map_err(raised)?;
        Ok((PyRouted { inner: Owned::new("Routed", (routed, made)) }, was_idle))
    }

    /// Sends other tensors the way of an earlier dispatch. Returns whether all work of a simulated device was
    /// complete before.
    #[pyo3(signature = (routed, rows, out, stream: "int"))]
    fn dispatch_again(
        &self,
        py: Python<'_>,
        routed: &PyRouted,
        rows: Vec<Given>,
        out: Vec<Given>,
        stream: usize,
    ) -> PyResult<bool> {
        let (made, routed) = (self.inner.get()?, routed.inner.get()?);
        py.detach(|| {
            made.put(stream, &out, |stream, place| {
                let rows = rows.iter().map(|rows| place(*rows)).collect::<Result<Vec<_>, _>>()?;
                let out = out.iter().map(|rows| place(*rows)).collect::<Result<Vec<_>, _>>()?;
                made.experts.dispatch_again(&routed.0, &rows, &out, stream)
            })
        })
        .map_or_else(|error| Err(raised(error)), |((), was_idle)| Ok(was_idle))
    }

    /// Sums the experts' rows. Returns whether all work of a simulated device was complete before.
    #[pyo3(signature = (routed, rows, out, weights, bias, exact, stream: "int"))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords of the Python layer")]
    fn combine(
        &self,
        py: Python<'_>,
        routed: &PyRouted,
        rows: Given,
        out: Given,
        weights: Option<Given>,
        bias: Option<Given>,
        exact: bool,
        stream: usize,
    ) -> PyResult<bool> {
        let (made, routed) = (self.inner.get()?, routed.inner.get()?);
        py.detach(|| {
            made.put(stream, &[out], |stream, place| {
                let mut combine = Combine::new(&routed.0, place(rows)?, place(out)?);
                if let Some(weights) = weights {
                    combine = combine.weights(place(weights)?);
                }
                if let Some(bias) = bias {
                    combine = combine.bias(place(bias)?);
                }
                made.experts.combine(&if exact { combine.exact() } else { combine }, stream)
            })
        })
        .map_or_else(|error| Err(raised(error)), |((), was_idle)| Ok(was_idle))
    }

    /// Gives the rows of a dispatch back without a combine.
    #[pyo3(signature = (routed, stream: "int"))]
    fn release(&self, py: Python<'_>, routed: &PyRouted, stream: usize) -> PyResult<()> {
        let (made, routed) = (self.inner.get()?, routed.inner.get()?);
        py.detach(|| made.experts.release(&routed.0, &device::stream(&made.gpu, stream)?)).map_err(raised)
    }

    /// Waits until all work of the stream is complete, at most for the time-out of the set-up, and raises an error if
    /// a call failed.
    #[pyo3(signature = (stream: "int"))]
    fn synchronize(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        let made = self.inner.get()?;
        waited(py, move || {
            made.experts.synchronize(&device::stream(&made.gpu, stream)?)?;
            made.copies.forget();
            Ok(())
        })
    }

    /// Raises an error if a complete call failed. Does not block.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let made = self.inner.get()?;
        py.detach(|| made.experts.check()).map_err(raised)
    }
}

impl Made {
    /// Puts a call into a stream. `call` gets the memory that it uses for memory of the program, of which it stores
    /// to `written`. Returns what the call returns, and whether all work of a simulated device was complete before.
    fn put<T>(
        &self,
        stream: usize,
        written: &[Given],
        call: impl FnOnce(&Stream, &mut dyn FnMut(Given) -> Result<Memory, Error>) -> Result<T, Error>,
    ) -> Result<(T, bool), Error> {
        let stream = device::stream(&self.gpu, stream)?;
        // SAFETY: the program gives memory of the device, or this function a copy of it, and both are kept until the
        // call is complete.
        let memory = |at, bytes| unsafe { Memory::from_raw(at, bytes) };
        if self.gpu.platform() != Platform::Sim {
            return Ok((call(&stream, &mut |(at, bytes)| Ok(memory(DevicePtr(at), bytes)))?, false));
        }
        let was_idle = self.copies.forget_if_idle(&stream)?;
        let mut copies = Copies::new(&self.gpu, &stream);
        let done = call(&stream, &mut |(at, bytes)| {
            // SAFETY: the program gives memory of the process, and keeps it until the call is complete.
            let at = unsafe { copies.of(DevicePtr(at), bytes)? };
            Ok(memory(at, bytes))
        });
        // Also after an error: a rank with too many tokens sends none, but it receives.
        let written: Vec<_> = written.iter().map(|(at, bytes)| (DevicePtr(*at), *bytes)).collect();
        // SAFETY: the program's memory, as above.
        self.copies.keep(unsafe { copies.back(&written)? });
        Ok((done?, was_idle))
    }
}

#[pymethods]
impl PyRouted {
    /// How many rows came from each rank.
    fn rows_of_ranks(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        let held = self.inner.get()?;
        py.detach(|| held.0.rows_of_ranks()).map_err(raised)
    }

    /// How many rows came for each expert of this rank.
    fn rows_of_experts(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        let held = self.inner.get()?;
        py.detach(|| held.0.rows_of_experts()).map_err(raised)
    }

    /// Returns what came with a row: the number of the token, the local expert of each choice, and the weights.
    fn row(&self, py: Python<'_>, rank: usize, n: usize) -> PyResult<(u32, Vec<i32>, Vec<f32>)> {
        let held = self.inner.get()?;
        py.detach(|| held.0.row(rank, n)).map_err(raised)
    }

    /// The address of the counts of `rows_of_experts`.
    fn rows_of_experts_on_device(&self) -> PyResult<u64> {
        Ok(self.inner.get()?.0.rows_of_experts_on_device().0)
    }

    /// The address of the offsets of the layout "flat".
    fn offsets_on_device(&self) -> PyResult<u64> {
        Ok(self.inner.get()?.0.offsets_on_device().0)
    }

    /// Where the rows of a tensor are in the layout "rank": the address, the bytes of a row, from a row to the next,
    /// and from a rank to the next.
    fn received(&self, part: usize) -> PyResult<(u64, u64, u64, u64)> {
        let it = self.inner.get()?.0.received(part).map_err(raised)?;
        Ok((it.ptr.0, it.row_bytes, it.row_stride, it.rank_stride))
    }
}

/// Does work that blocks, and whose wait Ctrl-C ends.
fn waited<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> PyResult<T> {
    waiting::wait(py, move || Ok::<_, mscclpp::Error>(work()))?.map_err(raised)
}

fn raised(error: Error) -> PyErr {
    error::new(error.kind(), Report(&error).to_string())
}
