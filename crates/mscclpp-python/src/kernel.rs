//! Kernels of Python programs: compiled, loaded, and launched with their arguments packed into one run of bytes.

use std::sync::{Arc, Weak};

use mscclpp::{
    DevicePtr, Error, Gpu, Kernel, KernelArgs, KernelSource, LaunchConfig, Module,
    errors::GpuError,
    gpu::{KernelParameter, numa},
};
use parking_lot::Mutex;
use pyo3::{exceptions::PyValueError, prelude::*, types::PyTuple};

use crate::{
    arguments::{self, Prepared},
    device::{self, current, number, platform},
    error::{self, OrRaise},
    owned::Owned,
    raw::Bytes,
    uint::Uint,
    waiting,
};

/// A kernel, loaded on the GPU that was current when this was made. `mscclpp.utils.Kernel` is built on it.
#[pyclass(name = "_Kernel", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyKernel {
    inner: Owned<Loaded>,
    /// The arguments of the last launch with a tuple, as long as that launch needs them.
    last: Mutex<Weak<Prepared>>,
}

struct Loaded {
    kernel: Kernel,
    gpu: Gpu,
}

#[pymethods]
impl PyKernel {
    /// Compiles `source`, unless `ptx` was given, which was compiled from it before. `name` stands in messages.
    /// `headers` are the names by which the source includes files, and their texts.
    #[new]
    #[pyo3(signature = (name, source, headers, kernel, ptx = None))]
    fn new(
        py: Python<'_>,
        name: String,
        source: String,
        headers: Vec<(String, String)>,
        kernel: String,
        ptx: Option<String>,
    ) -> PyResult<Self> {
        Self::load(py, kernel, move |gpu| {
            let headers: Vec<(&str, &str)> = headers.iter().map(|(name, text)| (&**name, &**text)).collect();
            let ptx: Vec<(u32, &str)> = ptx.iter().map(|ptx| (0, &**ptx)).collect();
            Module::load(gpu, &KernelSource::new(&name, &source).with_headers(&headers).with_ptx(&ptx))
        })
    }

    /// Loads a cubin or fatbin.
    #[staticmethod]
    fn of_binary(py: Python<'_>, name: String, binary: Bytes, kernel: String) -> PyResult<Self> {
        // SAFETY: by giving the binary, the program says that a compiler made it and nobody changed it.
        Self::load(py, kernel, move |gpu| unsafe { Module::load_binary(gpu, &name, &binary.0) })
    }

    /// One of the library's kernels that add a residual and normalise, such as "all_reduce_rms_norm_f16".
    #[staticmethod]
    fn of_rms_norm(py: Python<'_>, kernel: String) -> PyResult<Self> {
        Self::load(py, kernel, |gpu| Module::load_once(gpu, &mscclpp::kernels::ALL_REDUCE_RMS_NORM))
    }

    /// The offset and size of each parameter, in bytes.
    #[getter]
    fn parameters(&self) -> PyResult<Vec<(u64, u64)>> {
        let loaded = self.inner.get()?;
        Ok(loaded.parameters()?.iter().map(|parameter| (parameter.offset, parameter.size)).collect())
    }

    /// The names of the parameters. The list is empty if the source does not have them.
    #[getter]
    fn parameter_names(&self) -> PyResult<Vec<String>> {
        Ok(self.inner.get()?.kernel.parameter_names())
    }

    /// Submits a launch to `stream`, a driver's handle, or to the default stream, and does not wait for it. `keep`,
    /// the tuple that `params` was made of, lives at least until the launch is complete. `addresses` holds, for each
    /// place of the tuple with a tensor that can move, its address; then `launch_again` may launch the tuple again.
    /// If it is None, `launch_again` does not.
    #[pyo3(signature = (params, nblocks, nthreads, shared, stream, keep: "tuple[typing.Any, ...] | None" = None, addresses = None))]
    #[allow(clippy::too_many_arguments, reason = "called by one function of the Python layer")]
    fn launch(
        &self,
        py: Python<'_>,
        params: Bytes,
        nblocks: [u32; 3],
        nthreads: [u32; 3],
        shared: Uint<u32>,
        stream: Option<usize>,
        keep: Option<Bound<'_, PyTuple>>,
        addresses: Option<Vec<(usize, u64)>>,
    ) -> PyResult<()> {
        let loaded = self.inner.get()?;
        let mut args = arguments::unpack(loaded.kernel.name(), loaded.parameters()?, &params.0)?;
        if let Some(tuple) = keep {
            let may_repeat = addresses.is_some();
            let prepared = Prepared::new(tuple, args, addresses.unwrap_or_default())?;
            args = Prepared::args(&prepared);
            if may_repeat {
                *self.last.lock() = Arc::downgrade(&prepared);
            }
        }
        loaded.launch(
            py,
            &args,
            LaunchConfig { grid: nblocks, block: nthreads, shared_bytes: shared.0 },
            stream,
        )
    }

    /// Launches the tuple of the last launch again, if that launch still runs and nothing in the tuple has changed.
    /// Returns whether it did.
    #[pyo3(signature = (params: "tuple[typing.Any, ...]", nblocks, nthreads, shared, stream))]
    fn launch_again(
        &self,
        py: Python<'_>,
        params: &Bound<'_, PyTuple>,
        nblocks: [u32; 3],
        nthreads: [u32; 3],
        shared: Uint<u32>,
        stream: Option<usize>,
    ) -> PyResult<bool> {
        let loaded = self.inner.get()?;
        let Some(prepared) = self.last.lock().upgrade() else { return Ok(false) };
        if !prepared.is_of(params)? {
            return Ok(false);
        }
        let args = Prepared::args(&prepared);
        let config = LaunchConfig { grid: nblocks, block: nthreads, shared_bytes: shared.0 };
        loaded.launch(py, &args, config, stream).map(|()| true)
    }
}

impl Loaded {
    fn launch(
        &self,
        py: Python<'_>,
        args: &KernelArgs,
        config: LaunchConfig,
        stream: Option<usize>,
    ) -> PyResult<()> {
        let Self { kernel, gpu } = self;
        let launch = || {
            let stream = device::stream(gpu, stream.unwrap_or(0))?;
            // SAFETY: the arguments have the number and sizes of the kernel's parameters. By launching it, the
            // program says that they are what the kernel expects, and that the memory they point to lives.
            Ok::<_, Error>(unsafe { kernel.launch(&stream, config, args) }?)
        };
        py.detach(launch).or_raise()
    }
}

impl PyKernel {
    pub(crate) fn kernel(&self) -> PyResult<Kernel> {
        Ok(self.inner.get()?.kernel.clone())
    }

    fn load(
        py: Python<'_>,
        kernel: String,
        load: impl FnOnce(&Gpu) -> Result<Module, GpuError> + Send + 'static,
    ) -> PyResult<Self> {
        let gpu = current(py)?;
        let loaded = waiting::wait(py, move || {
            let kernel = load(&gpu)?.kernel(&kernel)?;
            Ok::<_, Error>(Loaded { kernel, gpu })
        })?;
        loaded.parameters()?;
        Ok(Self { inner: Owned::new("Kernel", loaded), last: Mutex::default() })
    }
}

impl Loaded {
    fn parameters(&self) -> PyResult<&[KernelParameter]> {
        self.kernel.parameters().ok_or_else(|| {
            error::misuse(format!(
                "{} cannot be launched from Python: {} does not say what parameters a kernel has; NVIDIA's driver does from \
                 release 550 on",
                self.kernel.name(),
                self.gpu
            ))
        })
    }
}

/// Returns PTX from the cache of compiled kernels. If it is not there, calls `make` and stores its result. The key is
/// a hash of all of `made_from`.
#[pyfunction(name = "_cached_ptx")]
#[pyo3(signature = (name, made_from, make: "collections.abc.Callable[[], str]"))]
pub(crate) fn cached_ptx(
    py: Python<'_>,
    name: String,
    made_from: Vec<String>,
    make: Py<PyAny>,
) -> PyResult<String> {
    let mut raised = None;
    let made_from: Vec<&str> = made_from.iter().map(String::as_str).collect();
    // `make` runs on this thread, so that Ctrl-C ends it.
    let ptx = py.detach(|| {
        mscclpp::gpu::cached_ptx(&name, &made_from, || {
            Python::attach(|py| make.call0(py)?.extract(py)).map_err(|error: PyErr| {
                let log = error.to_string();
                raised = Some(error);
                GpuError::Compile { name: name.clone(), log }
            })
        })
    });
    match raised {
        Some(error) => Err(error),
        None => ptx.or_raise(),
    }
}

type CurrentGpu = (String, usize, Option<(u32, u32)>);

/// The platform of the current GPU, its number, and its compute capability, if it is one of CUDA.
#[pyfunction(name = "_current_gpu")]
pub(crate) fn current_gpu(py: Python<'_>) -> PyResult<CurrentGpu> {
    let gpu = current(py)?;
    let properties = gpu.properties();
    Ok((properties.platform.to_string(), properties.id, properties.compute_capability))
}

/// The NUMA node of a GPU. None where the system does not say it.
#[pyfunction(name = "_numa_node")]
#[pyo3(signature = (device_id: "typing.SupportsIndex"))]
pub(crate) fn numa_node(
    py: Python<'_>,
    #[pyo3(from_py_with = number)] device_id: usize,
) -> PyResult<Option<u32>> {
    let platform = platform(py)?;
    Ok(py.detach(|| platform.gpu(device_id)).or_raise()?.properties().numa_node)
}

/// Binds this thread, and those that it starts later, to the processors of a NUMA node.
#[pyfunction(name = "_bind_to_node")]
pub(crate) fn bind_to_node(py: Python<'_>, node: i64) -> PyResult<()> {
    let wrong = |problem: String| PyValueError::new_err(format!("argument 'node': {problem}"));
    let number = u32::try_from(node).map_err(|_| wrong(format!("there is no NUMA node {node}")))?;
    match py.detach(|| numa::bind_thread(Some(number))) {
        Err(GpuError::InvalidArgument(problem)) => Err(wrong(problem)),
        outcome => outcome.map(drop).or_raise(),
    }
}

/// The number of the GPU whose memory holds an address.
#[pyfunction(name = "_device_of")]
pub(crate) fn device_of(py: Python<'_>, address: Uint<u64>) -> PyResult<Option<usize>> {
    let platform = platform(py)?;
    Ok(py.detach(|| platform.owner_of(DevicePtr(address.0))).or_raise()?.map(|gpu| gpu.id()))
}
