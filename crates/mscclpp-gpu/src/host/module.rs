use std::{collections::HashSet, sync::Arc};

use super::{
    HostKernel, HostSymbol,
    launch::Launch,
    memory::{DeviceMemory, Heap},
    stream::HostStream,
};
use crate::{
    DevicePtr, Error, KernelArgs, LaunchConfig, ModuleSource, Result,
    backend::{KernelBackend, MemoryBackend, ModuleBackend, StreamBackend},
};

/// Every variable starts at a multiple of this, as in a GPU's modules.
const SYMBOL_ALIGNMENT: u64 = 256;

/// Host twins, and the module's variables: one allocation on its device.
pub(super) struct HostModule {
    kernels: Vec<HostKernel>,
    symbols: Vec<(HostSymbol, DevicePtr)>,
    _variables: Option<DeviceMemory>,
}

impl HostModule {
    pub(super) fn load(heap: &Arc<Heap>, source: &ModuleSource<'_>) -> Result<Self> {
        let names =
            source.host_kernels.iter().map(|k| k.name).chain(source.host_symbols.iter().map(|s| s.name));
        let mut seen = HashSet::new();
        for name in names {
            if !seen.insert(name) {
                return Err(malformed(format!("{name:?} is defined twice")));
            }
        }
        let mut offsets = Vec::with_capacity(source.host_symbols.len());
        let mut end = 0u64;
        for symbol in source.host_symbols {
            offsets.push(end);
            end = symbol
                .size
                .checked_next_multiple_of(SYMBOL_ALIGNMENT)
                .filter(|size| *size > 0)
                .and_then(|size| end.checked_add(size))
                .ok_or_else(|| malformed(format!("variable {:?} has {} bytes", symbol.name, symbol.size)))?;
        }
        let variables = if end == 0 { None } else { Some(heap.allocate(end)?) };
        let start = variables.as_ref().map_or(DevicePtr::NULL, MemoryBackend::ptr);
        let symbols =
            source.host_symbols.iter().zip(offsets).map(|(s, offset)| (*s, start.add(offset))).collect();
        Ok(Self { kernels: source.host_kernels.to_vec(), symbols, _variables: variables })
    }

    pub(super) fn address(&self, name: &str) -> Option<(DevicePtr, u64)> {
        self.symbols.iter().find(|(symbol, _)| symbol.name == name).map(|(symbol, ptr)| (*ptr, symbol.size))
    }
}

fn malformed(log: String) -> Error {
    Error::Compile { name: "the host side of a module".to_owned(), log }
}

fn no_such(kind: &'static str, name: &str, available: &[&str]) -> Error {
    let available = if available.is_empty() { "none".to_owned() } else { available.join(", ") };
    Error::NoSuchSymbol { kind, name: name.to_owned(), available }
}

/// What [`crate::Module`] holds; its kernels keep the module.
pub(super) struct LoadedModule(pub(super) Arc<HostModule>);

impl ModuleBackend for LoadedModule {
    fn kernel(&self, name: &str) -> Result<Arc<dyn KernelBackend>> {
        let kernels = &self.0.kernels;
        match kernels.iter().find(|kernel| kernel.name == name) {
            Some(kernel) => Ok(Arc::new(LoadedKernel { kernel: *kernel, module: Arc::clone(&self.0) })),
            None => Err(no_such("kernel", name, &kernels.iter().map(|k| k.name).collect::<Vec<_>>())),
        }
    }

    fn symbol(&self, name: &str) -> Result<(DevicePtr, u64)> {
        let names = || self.0.symbols.iter().map(|(symbol, _)| symbol.name).collect::<Vec<_>>();
        self.0.address(name).ok_or_else(|| no_such("symbol", name, &names()))
    }
}

struct LoadedKernel {
    kernel: HostKernel,
    module: Arc<HostModule>,
}

impl KernelBackend for LoadedKernel {
    unsafe fn launch(
        &self,
        stream: &dyn StreamBackend,
        config: LaunchConfig,
        args: &KernelArgs,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        let launch = unsafe { Launch::new(self.kernel, Arc::clone(&self.module), config, args.clone())? };
        HostStream::of(stream)?.queue().submit(super::queue::Op::Launch(Arc::new(launch)))
    }
}
