//! Counts of choices for `_deep_ep_normal.py`, which asks for them before a dispatch.

use mscclpp::{DevicePtr, Gpu, Platform, Stream};
use mscclpp_ep::{ChoiceCounter, Choices, Error, IdType, Memory};
use pyo3::prelude::*;

use crate::{device, experts::raised, simulated::Copies};

/// Counts the choices of tokens on one device.
#[pyclass(name = "_ChoiceCounter", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyChoiceCounter {
    gpu: Gpu,
    counter: ChoiceCounter,
}

#[pymethods]
impl PyChoiceCounter {
    /// Loads the kernel.
    #[new]
    fn new(py: Python<'_>, device: usize) -> PyResult<Self> {
        py.detach(|| {
            let gpu = Platform::detect()?.gpu(device)?;
            Ok(Self { counter: ChoiceCounter::new(&gpu)?, gpu })
        })
        .map_err(raised)
    }

    /// Counts the choices of `tokens` tokens, `top_k` each, at the address `ids`. `counts` gets 1 + `ranks` + `experts`
    /// numbers of 4 bytes, and `is_in_rank` a byte for each token and rank. On a simulated device, it waits until that is done.
    #[pyo3(signature = (tokens, top_k, ids, id_bytes, experts, ranks, counts, is_in_rank, stream: "int"))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords of the Python layer")]
    fn count(
        &self,
        py: Python<'_>,
        tokens: usize,
        top_k: usize,
        ids: u64,
        id_bytes: u64,
        experts: usize,
        ranks: usize,
        counts: u64,
        is_in_rank: u64,
        stream: usize,
    ) -> PyResult<()> {
        let sizes =
            [(tokens * top_k) as u64 * id_bytes, 4 * (1 + ranks + experts) as u64, (tokens * ranks) as u64];
        let given = [DevicePtr(ids), DevicePtr(counts), DevicePtr(is_in_rank)];
        let count = |at: [DevicePtr; 3], stream: &Stream| {
            // SAFETY: the memory has as many bytes, and lives until the work in the stream is complete.
            let [ids, counts, is_in_rank] =
                std::array::from_fn(|i| unsafe { Memory::from_raw(at[i], sizes[i]) });
            let id_type = if id_bytes == 8 { IdType::I64 } else { IdType::I32 };
            let choices = Choices::new((tokens, top_k), ids, experts, ranks).ids_of(id_type);
            self.counter.count(&choices, &counts, &is_in_rank, stream)
        };
        py.detach(|| {
            let stream = device::stream(&self.gpu, stream)?;
            if self.gpu.platform() != Platform::Sim {
                return count(given, &stream);
            }
            let mut copies = Copies::default();
            let mut at = given;
            for (at, bytes) in at.iter_mut().zip(sizes) {
                // SAFETY: the program gives memory of the process, which lives until the call returns: it waits for the copies.
                *at = unsafe { copies.of(&stream, *at, bytes)? };
            }
            let counted = count(at, &stream);
            // SAFETY: as above.
            let _copies = unsafe { copies.back(&stream, &[(given[1], sizes[1]), (given[2], sizes[2])])? };
            stream.synchronize()?;
            counted
        })
        .map_err(|error: Error| raised(error))
    }
}
