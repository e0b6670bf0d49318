use std::sync::Arc;

use parking_lot::Mutex;

use crate::{
    DevicePtr, Error, Event, Gpu, KernelArgs, KernelParam, KernelParameter, KernelSource, LaunchConfig,
    Platform, Result, Stream,
    backend::{KernelBackend, ModuleBackend, Submission},
    fork::OfProcess,
    parameter_names::parameter_names,
};

/// Loaded kernels of one device.
#[derive(Clone)]
pub struct Module {
    gpu: Gpu,
    backend: OfProcess<Arc<dyn ModuleBackend>>,
    /// The text of the source; empty where it is not known.
    source: Arc<str>,
}

impl Module {
    /// Loads `source` completely, and compiles it for the device first, unless it has PTX or is in the cache of
    /// compiled kernels. Nothing is left to be loaded at the first launch, because that could deadlock with a kernel
    /// that is waiting.
    ///
    /// On CUDA, a source whose kernels need too much static shared memory together with that of puts through port
    /// channels is compiled once more with `MSCCLPP_PORT_STAGE_BYTES=0`; a warning in the log says so.
    ///
    /// On CUDA, loading may wait for kernels that run on the device. So load modules before you launch a kernel that
    /// waits for something that comes later. Dropping a module does not wait: it is unloaded when the next one is
    /// loaded. If a kernel needs more local memory for each thread than the context has (`CU_LIMIT_STACK_SIZE`, 1024 bytes at
    /// first), loading raises it, as the first launch would; the device keeps that much for each thread it can run.
    ///
    /// Each load has its own `__device__` and `__constant__` variables, which constants initialise: loading runs no code of
    /// the source, and a source that would is [`Error::Compile`]. Blocks while it compiles, which takes some
    /// seconds the first time on a machine.
    ///
    /// # Errors
    /// [`Error::Compile`] with the message of the compiler or the driver; [`Error::NoCompiler`] and [`Error::Cache`];
    /// [`Error::InvalidArgument`] on simulated devices for a header whose name is no relative path of a file;
    /// [`Error::System`], with everything that was tried, if NVRTC (or hiprtc on HIP) is needed and missing.
    pub fn load(gpu: &Gpu, source: &KernelSource<'_>) -> Result<Self> {
        Ok(Self {
            gpu: gpu.clone(),
            backend: OfProcess::new(gpu.backend()?.load_module(source)?),
            source: source.cuda().into(),
        })
    }

    /// Loads `source` as [`Self::load`] does, the first time on a device in this process. Later calls return the same
    /// module, with the same `__device__` variables, and do not wait for kernels that run. It is never unloaded. This is
    /// for a set-up that may be repeated while kernels wait for other ranks. Two sources are the same if their names and
    /// texts are; headers are not compared.
    ///
    /// ```
    /// # use mscclpp_gpu::{KernelSource, Module, Platform};
    /// const SOURCE: KernelSource<'static> =
    ///     KernelSource::new("one.cu", r#"extern "C" __global__ void one(int* x) { *x = 1; }"#);
    /// # let gpu = Platform::detect_or_sim()?.gpu(0)?;
    /// let kernel = Module::load_once(&gpu, &SOURCE)?.kernel("one")?;
    /// # Ok::<(), mscclpp_gpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Self::load`].
    pub fn load_once(gpu: &Gpu, source: &KernelSource<'_>) -> Result<Self> {
        type Key = (Platform, usize, String, Arc<str>);
        type Entry = Arc<Mutex<Option<Module>>>;
        static LOADED: Mutex<Vec<(Key, Entry)>> = Mutex::new(Vec::new());
        // A forked child ends here: a thread that it does not have may hold the locks.
        gpu.backend()?;
        let key = (gpu.platform(), gpu.id(), source.name().to_owned(), Arc::from(source.cuda()));
        let entry = {
            let mut loaded = LOADED.lock();
            let found = loaded.iter().find(|(of, _)| *of == key).map(|(_, entry)| Arc::clone(entry));
            found.unwrap_or_else(|| {
                let entry = Arc::default();
                loaded.push((key, Arc::clone(&entry)));
                entry
            })
        };
        // Only threads that load the same module wait for each other.
        let mut module = entry.lock();
        if let Some(module) = &*module {
            return Ok(module.clone());
        }
        Ok(module.insert(Self::load(gpu, source)?).clone())
    }

    /// Loads code that was compiled for the device: a cubin or fatbin for CUDA, a code object for HIP. Messages show
    /// `name`. The rest is as for [`Module::load`]; but a kernel of a fatbin is loaded when [`Module::kernel`] is called,
    /// and that may wait for kernels that run.
    ///
    /// ```no_run
    /// # use mscclpp_gpu::{Module, Platform};
    /// let gpu = Platform::Cuda.gpu(0)?;
    /// let code = std::fs::read("add_one.cubin")?;
    /// // SAFETY: nvcc made it, for this GPU.
    /// let kernel = unsafe { Module::load_binary(&gpu, "add_one.cubin", &code)? }.kernel("add_one")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    /// The code is as a compiler made it, and whole: the driver trusts it.
    ///
    /// # Errors
    /// [`Error::Compile`] for code of another device; [`Error::InvalidArgument`] on CUDA for bytes that are no code or
    /// not whole, and on simulated devices, which load sources alone; [`Error::Driver`].
    pub unsafe fn load_binary(gpu: &Gpu, name: &str, binary: &[u8]) -> Result<Self> {
        // SAFETY: the caller's promise.
        let backend = OfProcess::new(unsafe { gpu.backend()?.load_binary(name, binary)? });
        Ok(Self { gpu: gpu.clone(), backend, source: "".into() })
    }

    /// Returns the kernel with this name.
    ///
    /// # Errors
    /// [`Error::NoSuchSymbol`].
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        Ok(Kernel {
            name: name.into(),
            gpu: self.gpu.clone(),
            backend: OfProcess::new(self.backend.here()?.kernel(name)?),
            source: Arc::clone(&self.source),
        })
    }

    /// Sets a variable of the module, or the first elements of an array, for example a `__constant__` array of handles.
    /// Blocks until that is done. Kernels that run meanwhile may see the old or the new value.
    ///
    /// # Errors
    /// [`Error::NoSuchSymbol`]; [`Error::OutOfBounds`] if the values are larger than the variable; an error of the
    /// device.
    pub fn set_symbol<T: KernelParam>(&self, name: &str, values: &[T]) -> Result<()> {
        let (address, size) = self.symbol(name)?;
        let bytes = T::slice_to_bytes(values);
        Error::bounds("Module::set_symbol", 0, bytes.len() as u64, size)?;
        // SAFETY: the range is the module's variable, just compared.
        unsafe { self.gpu.backend()?.write(address, &bytes) }
    }

    /// Returns the address and the size in bytes of a variable of the module, for example a `__constant__` array of
    /// handles.
    ///
    /// # Errors
    /// [`Error::NoSuchSymbol`].
    pub fn symbol(&self, name: &str) -> Result<(DevicePtr, u64)> {
        self.backend.here()?.symbol(name)
    }
}

mscclpp_os::debug_fields!(Module, |this| gpu: this.gpu.to_string(), ..);

/// A kernel, ready to be launched. It keeps its module alive.
#[derive(Clone)]
pub struct Kernel {
    name: Arc<str>,
    gpu: Gpu,
    backend: OfProcess<Arc<dyn KernelBackend>>,
    /// The text of the module's source.
    source: Arc<str>,
}

impl Kernel {
    /// Submits one launch to `stream`, which must be a stream of the same device. Does not wait for it.
    ///
    /// The kernel's module and the objects among the arguments ([`KernelArgs`]) live until the launch is complete, even
    /// if they and the stream are dropped meanwhile.
    ///
    /// On CUDA, a kernel whose PTX has `griddepcontrol.wait` may begin before what is in front of it on the stream is complete,
    /// and waits for that at this instruction: a programmatic dependent launch. That needs a driver of CUDA 12.3, and that
    /// `MSCCLPP_PROGRAMMATIC_LAUNCHES` is not `0`. Kernels of [binaries](Module::load_binary) are launched as usual.
    ///
    /// # Safety
    /// The arguments must match the kernel's parameters in number, order and type. The memory to which plain pointers
    /// and device handles among them point must be valid until the kernel is complete. Blocks that wait for each other
    /// must all fit on the device at once ([`Kernel::launch_cooperative`] checks that). In a kernel with `griddepcontrol.wait`,
    /// each thread executes it before it accesses memory that earlier work of the stream reads or writes. On simulated devices,
    /// no thread may need more than 120 KiB of stack.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a stream of another device, for a number of blocks or threads that no device runs,
    /// and for arguments that are not as many and as large as the [`Kernel::parameters`], if these are known; the error
    /// of an argument that has no value; [`Error::Driver`].
    pub unsafe fn launch(&self, stream: &Stream, config: LaunchConfig, args: &KernelArgs) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.submit(stream, Submission { config, args, cooperative: false, event: None }) }
    }

    /// Launches like [`Kernel::launch`], and records `event` when all blocks of the kernel have begun: for work in other streams
    /// that is to begin after the kernel, and not to wait for its end. What is in front of the kernel is complete then. Where the
    /// driver cannot do that (CUDA before 12.3, HIP, simulated devices), the event is recorded in front of the launch. On CUDA it
    /// must be one without timing.
    ///
    /// # Safety
    /// The same as for [`Kernel::launch`].
    ///
    /// # Errors
    /// The errors of [`Kernel::launch`]; [`Error::Driver`] for an event with timing.
    pub unsafe fn launch_recording(
        &self,
        stream: &Stream,
        config: LaunchConfig,
        args: &KernelArgs,
        event: &Event,
    ) -> Result<()> {
        let event = Some(event.backend()?);
        // SAFETY: the caller's promise.
        unsafe { self.submit(stream, Submission { config, args, cooperative: false, event }) }
    }

    /// Launches like [`Kernel::launch`], for blocks that wait for each other: a grid that does not fit on the device at
    /// once is refused.
    ///
    /// # Safety
    /// As for [`Kernel::launch`], except that this call checks that the blocks fit.
    ///
    /// # Errors
    /// The errors of [`Kernel::launch`], and [`Error::InvalidArgument`] for more blocks than
    /// [`Kernel::max_resident_blocks`].
    pub unsafe fn launch_cooperative(
        &self,
        stream: &Stream,
        config: LaunchConfig,
        args: &KernelArgs,
    ) -> Result<()> {
        config.check(&self.name, self.gpu.platform())?;
        let blocks: u64 = config.grid.iter().map(|n| u64::from(*n)).product();
        let threads = config.block.iter().product();
        let fit = self.max_resident_blocks(threads, config.shared_bytes)?;
        if blocks > fit {
            return Err(Error::invalid(format!(
                "cooperative launch of {}: {blocks} blocks of {threads} threads and {} bytes of dynamic shared memory do \
                 not fit on {} at once; {fit} do",
                self.name, config.shared_bytes, self.gpu
            )));
        }
        // SAFETY: the caller's promise.
        unsafe { self.submit(stream, Submission { config, args, cooperative: true, event: None }) }
    }

    /// # Safety
    /// The same as [`Kernel::launch`].
    unsafe fn submit(&self, stream: &Stream, submission: Submission<'_>) -> Result<()> {
        if stream.gpu().properties().uuid != self.gpu.properties().uuid {
            return Err(Error::invalid(format!(
                "kernel {} is loaded on {}, the stream is one of {}",
                self.name,
                self.gpu,
                stream.gpu()
            )));
        }
        submission.config.check(&self.name, self.gpu.platform())?;
        submission.args.check(&self.name, self.backend.parameters(), || self.parameter_names())?;
        // SAFETY: the caller's promise.
        unsafe { self.backend.here()?.launch(&**stream.backend()?, submission) }
    }

    /// Returns how many blocks of `threads` threads, with `shared_bytes` of dynamic shared memory each, fit on the device
    /// at once while nothing else runs there (its occupancy, times the multiprocessors). Simulated devices run 1024.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn max_resident_blocks(&self, threads: u32, shared_bytes: u32) -> Result<u64> {
        self.backend.here()?.max_resident_blocks(threads, shared_bytes)
    }

    /// Asks that a multiprocessor which runs the kernel keeps as much of its memory as it can for shared memory, and as
    /// little for the L1 cache: for a kernel that runs beside others. A multiprocessor divides its memory for all its
    /// kernels, by default as the kernel needs it that came first. So a kernel without shared memory keeps out others
    /// that need much, such as matrix multiplications, until it has ended.
    ///
    /// The preference holds for later launches of all clones. On HIP and simulated devices this does nothing.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn prefer_shared_memory(&self) -> Result<()> {
        self.backend.here()?.prefer_shared_memory()
    }

    /// The kernel's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the kernel's parameters. `None` if the platform does not know them: HIP, and CUDA drivers before release
    /// 550.
    ///
    /// ```
    /// # use mscclpp_gpu::{KernelParameter, KernelSource, Module, Platform};
    /// # let gpu = Platform::Sim.gpu(0)?;
    /// let source = r#"extern "C" __global__ void scale(float factor, double* data) { *data *= factor; }"#;
    /// let kernel = Module::load(&gpu, &KernelSource::new("scale.cu", source))?.kernel("scale")?;
    /// let [factor, data] = kernel.parameters().expect("simulated devices say it") else { unreachable!() };
    /// assert_eq!((factor.size, data.offset), (4, 8));
    /// # Ok::<(), mscclpp_gpu::Error>(())
    /// ```
    #[must_use]
    pub fn parameters(&self) -> Option<&[KernelParameter]> {
        self.backend.parameters()
    }

    /// Returns the names of its parameters, for messages, as its source declares them. Reads the source in each call.
    /// Empty if they are not found there, as for a kernel that a macro or a header declares, or without a source.
    #[must_use]
    pub fn parameter_names(&self) -> Vec<String> {
        let names = parameter_names(&self.source, &self.name);
        match self.parameters() {
            Some(parameters) if parameters.len() != names.len() => Vec::new(),
            _ => names,
        }
    }
}

mscclpp_os::debug_fields!(Kernel, |this| name: this.name, gpu: this.gpu.to_string());
