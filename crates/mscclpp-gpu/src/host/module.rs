use std::sync::Arc;

use super::{
    compiler,
    launch::{Launch, MAX_RESIDENT_BLOCKS},
    library::Library,
    stream::HostStream,
};
use crate::{
    DevicePtr, Error, KernelArgs, KernelParameter, KernelSource, LaunchConfig, Result,
    backend::{KernelBackend, ModuleBackend, StreamBackend},
};

/// Compiled kernels and their variables.
pub(super) struct HostModule {
    library: Library,
}

impl HostModule {
    pub(super) fn load(source: &KernelSource<'_>) -> Result<Self> {
        let compiled = compiler::compile(source)?;
        // SAFETY: just compiled, and refused if it ran anything; or from a cache that nobody else may write to.
        let library = unsafe { Library::load(source.name(), &compiled)? };
        Ok(Self { library })
    }

    pub(super) fn library(&self) -> &Library {
        &self.library
    }
}

fn no_such(kind: &'static str, name: &str, available: &[&str]) -> Error {
    let available = if available.is_empty() { "none".to_owned() } else { available.join(", ") };
    Error::NoSuchSymbol { kind, name: name.to_owned(), available }
}

/// What [`crate::Module`] holds; its kernels keep the module.
pub(super) struct LoadedModule(pub(super) Arc<HostModule>);

impl ModuleBackend for LoadedModule {
    fn kernel(&self, name: &str) -> Result<Arc<dyn KernelBackend>> {
        let kernels = self.0.library.kernels();
        match kernels.iter().position(|kernel| kernel.name == name) {
            Some(kernel) => Ok(Arc::new(LoadedKernel { module: Arc::clone(&self.0), kernel })),
            None => {
                Err(no_such("kernel", name, &kernels.iter().map(|k| k.name.as_str()).collect::<Vec<_>>()))
            }
        }
    }

    fn symbol(&self, name: &str) -> Result<(DevicePtr, u64)> {
        let library = &self.0.library;
        library.variable(name).ok_or_else(|| no_such("symbol", name, &library.variable_names()))
    }
}

struct LoadedKernel {
    module: Arc<HostModule>,
    kernel: usize,
}

impl KernelBackend for LoadedKernel {
    unsafe fn launch(
        &self,
        stream: &dyn StreamBackend,
        config: LaunchConfig,
        args: &KernelArgs,
        _cooperative: bool,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        let launch = unsafe { Launch::new(Arc::clone(&self.module), self.kernel, config, args.clone())? };
        HostStream::of(stream)?.queue().submit(super::queue::Op::Launch(Arc::new(launch)))
    }

    fn max_resident_blocks(&self, _threads: u32, _shared_bytes: u32) -> Result<u64> {
        Ok(MAX_RESIDENT_BLOCKS)
    }

    fn parameters(&self) -> Option<&[KernelParameter]> {
        Some(&self.module.library.kernels()[self.kernel].parameters)
    }
}
