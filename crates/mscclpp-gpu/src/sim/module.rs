use std::sync::Arc;

use super::{
    compiler,
    launch::{Launch, MAX_RESIDENT_BLOCKS},
    library::Library,
    stream::SimStream,
};
use crate::{
    DevicePtr, Error, KernelParameter, KernelSource, Result,
    backend::{KernelBackend, ModuleBackend, StreamBackend, Submission},
};

fn no_such(kind: &'static str, name: &str, available: &[&str]) -> Error {
    let available = if available.is_empty() { "none".to_owned() } else { available.join(", ") };
    Error::NoSuchSymbol { kind, name: name.to_owned(), available }
}

/// The simulated [`crate::Module`]; its kernels keep the library.
pub(super) struct SimModule(Arc<Library>);

impl SimModule {
    pub(super) fn load(source: &KernelSource<'_>) -> Result<Self> {
        let compiled = compiler::compile(source)?;
        // SAFETY: just compiled, and refused if it ran anything; or from a cache that nobody else may write to.
        Ok(Self(Arc::new(unsafe { Library::load(source.name(), &compiled)? })))
    }
}

impl ModuleBackend for SimModule {
    fn kernel(&self, name: &str) -> Result<Arc<dyn KernelBackend>> {
        let kernels = self.0.kernels();
        match kernels.iter().position(|kernel| kernel.name == name) {
            Some(kernel) => Ok(Arc::new(SimKernel { library: Arc::clone(&self.0), kernel })),
            None => {
                Err(no_such("kernel", name, &kernels.iter().map(|k| k.name.as_str()).collect::<Vec<_>>()))
            }
        }
    }

    fn symbol(&self, name: &str) -> Result<(DevicePtr, u64)> {
        self.0.variable(name).ok_or_else(|| no_such("symbol", name, &self.0.variable_names()))
    }
}

struct SimKernel {
    library: Arc<Library>,
    kernel: usize,
}

impl KernelBackend for SimKernel {
    unsafe fn launch(&self, stream: &dyn StreamBackend, submission: Submission<'_>) -> Result<()> {
        let Submission { config, args, cooperative: _, event } = submission;
        // SAFETY: the caller's promise.
        let launch = unsafe { Launch::new(Arc::clone(&self.library), self.kernel, config, args.clone())? };
        event.map_or(Ok(()), |event| stream.record(event))?;
        SimStream::of(stream)?.queue().submit(super::queue::Op::Launch(Arc::new(launch)))
    }

    fn max_resident_blocks(&self, _threads: u32, _shared_bytes: u32) -> Result<u64> {
        Ok(MAX_RESIDENT_BLOCKS)
    }

    fn parameters(&self) -> Option<&[KernelParameter]> {
        Some(&self.library.kernels()[self.kernel].parameters)
    }
}
