//! The experts of `mscclpp-ep`, called with addresses. The Python layer (`ep.py`) takes arrays.

use std::sync::Arc;

use mscclpp::{DevicePtr, Gpu, Platform, Stream};
use mscclpp_ep::{
    Combine, Dispatch, Error, Experts, ExpertsBuilder, IdType, Layout, Memory, NumberType, Payload,
    Quantisation, Receive,
};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::{
    communicator::PyCommunicator,
    device,
    error::{self, OrRaise},
    owned::{Owned, closable},
    routed::{PyReceive, PyRouted, Unreceived},
    simulated::{Copies, KeptCopies},
    waiting,
};

/// The experts of all ranks of a communicator, as one rank has them.
#[pyclass(name = "_Experts", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyExperts {
    inner: Owned<Made>,
}

pub(crate) struct Made {
    experts: Experts,
    pub(crate) gpu: Gpu,
    copies: Arc<KeptCopies>,
}

closable!(PyExperts, inner);

/// The address and the size of memory.
type Given = (u64, u64);

#[pymethods]
impl PyExperts {
    /// Sets up the experts of the ranks of a communicator. All ranks call it, and it blocks until they have.
    #[new]
    #[pyo3(signature = (communicator, device, dtype, experts, top_k, hidden, capacity, expert_map, quantise, row_bytes, also, micro_batches, exact, max_blocks, calls_at_once, timeout_sec, survive_loss, tag, ranks))]
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
        survive_loss: Option<f64>,
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
        let quantise = quantise.map(quantisation).transpose()?;
        let timeout = timeout_sec.map(waiting::seconds).transpose()?;
        let patience = survive_loss.map(waiting::seconds).transpose()?;
        let builder =
            also.into_iter().fold(builder.micro_batches(micro_batches).exact(exact), ExpertsBuilder::also);
        let builder = quantise.into_iter().fold(builder, ExpertsBuilder::quantise);
        let builder = expert_map.into_iter().fold(builder, ExpertsBuilder::expert_map);
        let builder = row_bytes.into_iter().fold(builder, ExpertsBuilder::row_bytes);
        let builder = max_blocks.into_iter().fold(builder, ExpertsBuilder::max_blocks);
        let builder = calls_at_once.into_iter().fold(builder, ExpertsBuilder::calls_at_once);
        let builder = timeout.into_iter().fold(builder, ExpertsBuilder::timeout);
        let builder = patience.into_iter().fold(builder, ExpertsBuilder::survive_loss);
        let builder = tag.into_iter().fold(builder, ExpertsBuilder::tag);
        let builder = ranks.into_iter().fold(builder, ExpertsBuilder::ranks);
        let experts = waiting::outcome(py, move || builder.connect())?.map_err(raised)?;
        let made = Made { experts, gpu, copies: Arc::default() };
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

    /// The ranks that are known to be lost.
    fn lost(&self) -> PyResult<Vec<usize>> {
        Ok(self.inner.get()?.experts.lost())
    }

    /// How many choices counted as none because a rank was lost.
    fn lost_choices(&self, py: Python<'_>) -> PyResult<u64> {
        let made = self.inner.get()?;
        py.detach(|| made.experts.lost_choices()).map_err(raised)
    }

    /// Has later calls go on without these ranks.
    #[pyo3(signature = (ranks, stream: "int"))]
    fn lose(&self, py: Python<'_>, ranks: Vec<usize>, stream: usize) -> PyResult<()> {
        let made = self.inner.get()?;
        py.detach(|| made.experts.lose(&ranks, &device::stream(&made.gpu, stream)?)).map_err(raised)
    }

    /// Returns the same experts with other tensors that travel.
    fn with_payload(
        &self,
        quantise: Option<&str>,
        row_bytes: Option<usize>,
        also: Vec<usize>,
    ) -> PyResult<Self> {
        let made = self.inner.get()?;
        let quantise = quantise.map(quantisation).transpose()?;
        let payload = also.into_iter().fold(Payload::new(), Payload::also);
        let payload = quantise.into_iter().fold(payload, Payload::quantise);
        let payload = row_bytes.into_iter().fold(payload, Payload::row_bytes);
        let experts = made.experts.with_payload(&payload).map_err(raised)?;
        let made = Made { experts, gpu: made.gpu.clone(), copies: made.copies.clone() };
        Ok(Self { inner: Owned::that_may_wait("Experts", made) })
    }

    /// Sends tokens. `rows` has the memory of each tensor to send, `out` that of each tensor to receive (empty for the
    /// layout "rank"). `along` has five outputs, each of which may be None: local ids, weights and sources of the rows,
    /// counts of the experts, and waiting times. Returns the routing, the second half if `hook`, and whether all work of
    /// a simulated device was complete before.
    #[pyo3(signature = (tokens, ids, id_bytes, weights, rows, layout, alignment, out, along, micro_batch, zero_rest, mask_along, column_major, hook, stream: "int"))]
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
        along: [Option<Given>; 5],
        micro_batch: usize,
        zero_rest: bool,
        mask_along: bool,
        column_major: bool,
        hook: bool,
        stream: usize,
    ) -> PyResult<(PyRouted, Option<PyReceive>, bool)> {
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
        let written: Vec<Given> = out.iter().copied().chain(along.into_iter().flatten()).collect();
        let (routed, receive, was_idle) = py
            .detach(|| {
                made.put(stream, &written, |stream, place| {
                    let mut dispatch = Dispatch::new(tokens, place(ids)?, place(*first)?)
                        .ids_of(if id_bytes == 8 { IdType::I64 } else { IdType::I32 })
                        .micro_batch(micro_batch)
                        .zero_rest(zero_rest)
                        .mask_along(mask_along)
                        .column_major(column_major);
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
                    let into: [fn(Dispatch, Memory) -> Dispatch; 5] = [
                        Dispatch::ids_into,
                        Dispatch::weights_into,
                        Dispatch::sources_into,
                        Dispatch::add_counts_to,
                        Dispatch::add_waits_to,
                    ];
                    for (memory, into) in along.into_iter().zip(into) {
                        if let Some(memory) = memory {
                            dispatch = into(dispatch, place(memory)?);
                        }
                    }
                    if hook {
                        let (routed, receive) = made.experts.dispatch_send(&dispatch, stream)?;
                        return Ok((routed, Some(receive)));
                    }
                    Ok((made.experts.dispatch(&dispatch, stream)?, None))
                })
            })
            .map_err(raised)?;
        Ok((PyRouted { inner: Owned::new("Routed", (routed, made)) }, receive, was_idle))
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
                made.experts.dispatch_again(&routed.0, &rows, &out, stream)?;
                Ok(((), None))
            })
        })
        .map_or_else(|error| Err(raised(error)), |((), _, was_idle)| Ok(was_idle))
    }

    /// Sums the experts' rows. `row_weights` are the weights of rows and the memory for those that come back. Returns
    /// the second half if `hook`, and whether all work of a simulated device was complete before.
    #[pyo3(signature = (routed, rows, out, weights, biases, exact, row_weights, waits, hook, stream: "int"))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords of the Python layer")]
    fn combine(
        &self,
        py: Python<'_>,
        routed: &PyRouted,
        rows: Given,
        out: Given,
        weights: Option<Given>,
        biases: Vec<Given>,
        exact: bool,
        row_weights: Option<(Given, Given)>,
        waits: Option<Given>,
        hook: bool,
        stream: usize,
    ) -> PyResult<(Option<PyReceive>, bool)> {
        let (made, routed) = (self.inner.get()?, routed.inner.get()?);
        let written: Vec<Given> =
            [out].into_iter().chain(row_weights.map(|(_, taken)| taken)).chain(waits).collect();
        py.detach(|| {
            made.put(stream, &written, |stream, place| {
                let mut combine = Combine::new(&routed.0, place(rows)?, place(out)?);
                if let Some(weights) = weights {
                    combine = combine.weights(place(weights)?);
                }
                for bias in biases {
                    combine = combine.bias(place(bias)?);
                }
                if let Some((given, taken)) = row_weights {
                    combine = combine.row_weights(place(given)?, place(taken)?);
                }
                if let Some(waits) = waits {
                    combine = combine.add_waits_to(place(waits)?);
                }
                if exact {
                    combine = combine.exact();
                }
                if hook {
                    return Ok(((), Some(made.experts.combine_send(&combine, stream)?)));
                }
                made.experts.combine(&combine, stream)?;
                Ok(((), None))
            })
        })
        .map_or_else(|error| Err(raised(error)), |((), receive, was_idle)| Ok((receive, was_idle)))
    }

    /// Gives the rows of a dispatch back without a combine.
    #[pyo3(signature = (routed, stream: "int"))]
    fn release(&self, py: Python<'_>, routed: &PyRouted, stream: usize) -> PyResult<()> {
        let (made, routed) = (self.inner.get()?, routed.inner.get()?);
        if !routed.0.is_of(&made.experts) {
            let text = "a routing of other experts: give one that these have made";
            return Err(raised(Error::InvalidArgument(text.to_owned())));
        }
        py.detach(|| routed.0.release(&device::stream(&made.gpu, stream)?)).map_err(raised)
    }

    /// Waits until all work of the stream is complete, at most for the time-out of the set-up, and raises an error if
    /// a call failed.
    #[pyo3(signature = (stream: "int"))]
    fn synchronize(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        let made = self.inner.get()?;
        let stream = device::stream(&made.gpu, stream).or_raise()?;
        let done = waiting::wait_for_stream(py, stream, move |stream| {
            made.experts.synchronize(stream).map(|()| made.copies.forget())
        });
        done?.map_err(raised)
    }

    /// Raises an error if a complete call failed. Does not block.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let made = self.inner.get()?;
        py.detach(|| made.experts.check()).map_err(raised)
    }
}

impl Made {
    /// Puts a call, or its first half, into a stream. `call` gets a function that translates each memory of the program
    /// to the memory that the device uses: the same on a GPU, a copy on a simulated device. `written` lists the
    /// program's memory that the call writes, to which copies are copied back. Returns what `call` returns, and whether
    /// all work of a simulated device was complete before.
    fn put<T>(
        &self,
        stream: usize,
        written: &[Given],
        call: impl FnOnce(
            &Stream,
            &mut dyn FnMut(Given) -> Result<Memory, Error>,
        ) -> Result<(T, Option<Receive>), Error>,
    ) -> Result<(T, Option<PyReceive>, bool), Error> {
        let stream = device::stream(&self.gpu, stream)?;
        // SAFETY: the program gives memory of the device, or this function a copy of it, and both are kept until the
        // call is complete.
        let memory = |at, bytes| unsafe { Memory::from_raw(at, bytes) };
        let second = |receive, copies| {
            let (gpu, kept) = (self.gpu.clone(), self.copies.clone());
            let half = Unreceived { receive, gpu, copies, kept };
            PyReceive { inner: Owned::new("Receive", Mutex::new(Some(half))) }
        };
        if self.gpu.platform() != Platform::Sim {
            let (done, receive) = call(&stream, &mut |(at, bytes)| Ok(memory(DevicePtr(at), bytes)))?;
            return Ok((done, receive.map(|receive| second(receive, None)), false));
        }
        let was_idle = self.copies.forget_if_idle(&stream)?;
        let mut copies = Copies::default();
        let done = call(&stream, &mut |(at, bytes)| {
            // SAFETY: the program gives memory of the process, and keeps it until the call is complete.
            let at = unsafe { copies.of(&stream, DevicePtr(at), bytes)? };
            Ok(memory(at, bytes))
        });
        let written: Vec<_> = written.iter().map(|(at, bytes)| (DevicePtr(*at), *bytes)).collect();
        if let Ok((done, Some(receive))) = done {
            return Ok((done, Some(second(receive, Some((copies, written)))), was_idle));
        }
        // Also after an error: a rank with too many tokens sends none, but it receives.
        // SAFETY: the program's memory, as above.
        self.copies.keep(unsafe { copies.back(&stream, &written)? });
        let (done, _) = done?;
        Ok((done, None, was_idle))
    }
}

fn quantisation(name: &str) -> PyResult<Quantisation> {
    match name {
        "e4m3" => Ok(Quantisation::E4m3),
        "e4m3_ue8m0" => Ok(Quantisation::E4m3Ue8m0),
        _ => Err(error::misuse(format!("there is no quantisation {name:?}"))),
    }
}

pub(crate) fn raised(error: Error) -> PyErr {
    match &error {
        Error::Below(error) => error::raise(error),
        error => error::in_python(error.kind(), error),
    }
}
