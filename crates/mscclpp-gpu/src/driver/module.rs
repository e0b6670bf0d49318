//! Modules and their kernels.
//!
//! Unloading a module may wait until every kernel that runs on the device is complete, and such a kernel may wait for
//! work that comes after it. So a module that is no longer used is unloaded when the next one is loaded: loading may
//! wait for kernels anyway, and its documentation says so. Where unloading is known to wait, as on CUDA, a launch need
//! not keep its module; a graph must, as it is launched again. HIP does not promise it, so there a launch keeps its
//! module until it is complete, and so does a graph ([`Api::LAUNCHES_KEEP_MODULES`]).

use std::{
    ffi::{CString, c_int, c_void},
    ptr,
    sync::Arc,
};

use mscclpp_gpu_sys::{Code, Entry};
use parking_lot::Mutex;

use super::{
    api::{Api, Handle, Way},
    device::Device,
    event::event_of,
    failure::{check, failure, log_failure},
    stream::Stream,
};
use crate::{
    DevicePtr, Error, KernelObject, KernelParameter, Owner, Result,
    backend::{KernelBackend, ModuleBackend, StreamBackend, Submission},
};

pub(crate) struct Module<D: Api> {
    pub(crate) loaded: Arc<Loaded<D>>,
    /// The names of its kernels and variables, as far as they are known, for messages.
    pub(crate) kernels: Option<Vec<String>>,
    pub(crate) variables: Option<Vec<String>>,
    /// The names of the kernels whose launches are programmatic.
    pub(crate) programmatic: Vec<String>,
}

pub(crate) struct Loaded<D: Api> {
    pub(crate) device: &'static Device<D>,
    raw: Handle<D::Module>,
    state: D::ModuleState,
}

impl<D: Api> Loaded<D> {
    /// `raw` was loaded, and is unloaded by what is made here alone.
    pub(crate) fn new(device: &'static Device<D>, raw: *mut D::Module) -> Self {
        Self { device, raw: Handle(raw), state: D::ModuleState::default() }
    }
}

impl<D: Api> Module<D> {
    /// The device is the thread's.
    pub(crate) fn function(&self, name: &str) -> Result<Option<*mut D::Function>> {
        let Ok(c_name) = CString::new(name) else { return Ok(None) };
        let driver = self.loaded.device.driver();
        let Entry(operation, get) = self.loaded.device.functions().module_get_function;
        let mut function = ptr::null_mut();
        // SAFETY: `function` is valid for the write; the module lives and the name is NUL-terminated.
        let result = unsafe { get(&raw mut function, self.loaded.raw.0, c_name.as_ptr()) };
        if result == D::Code::NOT_FOUND {
            driver.forget();
            return Ok(None);
        }
        check(driver, result, format_args!("{operation}({name})"))?;
        Ok(Some(function))
    }
}

impl<D: Api> KernelObject for Loaded<D> {}

impl<D: Api> ModuleBackend for Module<D> {
    fn kernel(&self, name: &str) -> Result<Arc<dyn KernelBackend>> {
        let device = self.loaded.device;
        let _entered = device.context.enter()?;
        let Some(function) = self.function(name)? else {
            return Err(no_such::<D>("kernel", name, self.kernels.as_deref()));
        };
        let parameters = device.driver().prepare(name, function)?;
        let module = Arc::clone(&self.loaded);
        let programmatic = self.programmatic.iter().any(|waiting| waiting == name);
        Ok(Arc::new(Kernel {
            owner: module.clone(),
            module,
            function: Handle(function),
            parameters,
            programmatic,
        }))
    }

    fn symbol(&self, name: &str) -> Result<(DevicePtr, u64)> {
        let unknown = || no_such::<D>("symbol", name, self.variables.as_deref());
        let c_name = CString::new(name).map_err(|_| unknown())?;
        let device = self.loaded.device;
        let _entered = device.context.enter()?;
        let Entry(operation, get) = device.functions().module_get_global;
        let (mut address, mut size) = (0, 0usize);
        // SAFETY: both are valid for the write; the module lives and the name is NUL-terminated.
        let result = unsafe { get(&raw mut address, &raw mut size, self.loaded.raw.0, c_name.as_ptr()) };
        if D::NO_SYMBOL.contains(&result) {
            device.driver().forget();
            return Err(unknown());
        }
        check(device.driver(), result, format_args!("{operation}({name})"))?;
        Ok((DevicePtr(address), size as u64))
    }
}

fn no_such<D: Api>(kind: &'static str, name: &str, available: Option<&[String]>) -> Error {
    let available = match available {
        None => D::NAMES_UNKNOWN.to_owned(),
        Some([]) => "none".to_owned(),
        Some(names) => names.join(", "),
    };
    Error::NoSuchSymbol { kind, name: name.to_owned(), available }
}

impl<D: Api> Drop for Loaded<D> {
    fn drop(&mut self) {
        self.device.retired_modules.0.lock().push(Handle(self.raw.0));
    }
}

/// Modules that are no longer used, to be unloaded with the next load. It lives as long as the process.
pub(crate) struct RetiredModules<D: Api>(Mutex<Vec<Handle<D::Module>>>);

impl<D: Api> Default for RetiredModules<D> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<D: Api> RetiredModules<D> {
    /// The device is the thread's. May wait for kernels that run.
    pub(crate) fn unload(&self, driver: &D) {
        let Entry(name, unload) = driver.functions().module_unload;
        let retired = std::mem::take(&mut *self.0.lock());
        for module in retired {
            // SAFETY: loaded once, and unloaded once, as it is in one list; its owners are gone: kernels, graphs, and those
            // launches for whose end the driver does not wait.
            log_failure(driver, unsafe { unload(module.0) }, name);
        }
    }
}

struct Kernel<D: Api> {
    module: Arc<Loaded<D>>,
    /// The module again, as graphs or launches keep it.
    owner: Owner,
    function: Handle<D::Function>,
    parameters: Option<Vec<KernelParameter>>,
    /// See [`crate::Kernel::launch`].
    programmatic: bool,
}

impl<D: Api> KernelBackend for Kernel<D> {
    unsafe fn launch(&self, stream: &dyn StreamBackend, submission: Submission<'_>) -> Result<()> {
        const ON_STACK: usize = 16;
        let Submission { config, args, cooperative, event } = submission;
        let stream = Stream::<D>::of(stream)?;
        let device = self.module.device;
        let _bound = device.context.bind()?;
        device.driver().allow_shared(&self.module.state, self.function.0, config.shared_bytes)?;
        let mut few = [ptr::null_mut(); ON_STACK];
        let mut many = Vec::new();
        let pointers = args.values().iter().map(|value| value.as_ptr().cast_mut().cast::<c_void>());
        let params: &mut [*mut c_void] = if args.len() <= ON_STACK {
            few.iter_mut().zip(pointers).for_each(|(slot, pointer)| *slot = pointer);
            &mut few
        } else {
            many.extend(pointers);
            &mut many
        };
        let ([gx, gy, gz], [bx, by, bz]) = (config.grid, config.block);
        let (function, shared, params) = (self.function.0, config.shared_bytes, params.as_mut_ptr());
        // An event says that the work in front is complete, too. A programmatic launch may begin before that.
        let way = match event {
            Some(event) => Some(Way::Recording(event_of::<D>(&**event)?.handle())),
            None => (self.programmatic && !cooperative).then_some(Way::Programmatic),
        };
        // SAFETY: the function, the stream and the event live. `params` points to as many arguments as the kernel has, each of
        // its type (the caller's promise); the driver copies them before it returns and does not write to them. A kernel is
        // programmatic if its text has the wait.
        let launched = way.and_then(|way| unsafe {
            device.driver().launch_by(way, function, config, stream.handle(), params)
        });
        if let (Some(event), None) = (event, &launched) {
            stream.record(event)?;
        }
        // SAFETY: the same as above.
        let (call, result) = unsafe {
            if let Some(launched) = launched {
                launched
            } else if cooperative {
                let Entry(name, launch) = device.functions().launch_cooperative_kernel;
                (name, launch(function, gx, gy, gz, bx, by, bz, shared, stream.handle(), params))
            } else {
                let Entry(name, launch) = device.functions().launch_kernel;
                let extra = ptr::null_mut();
                (name, launch(function, gx, gy, gz, bx, by, bz, shared, stream.handle(), params, extra))
            }
        };
        if result != D::Code::SUCCESS {
            let operation = format!("{call}({config:?}, {} arguments)", args.len());
            return Err(failure(device.driver(), result, operation));
        }
        stream.keep(args.owners(), std::slice::from_ref(&self.owner));
        Ok(())
    }

    fn parameters(&self) -> Option<&[KernelParameter]> {
        self.parameters.as_deref()
    }

    fn prefer_shared_memory(&self) -> Result<()> {
        let device = self.module.device;
        let _entered = device.context.enter()?;
        device.driver().prefer_shared(self.function.0)
    }

    fn max_resident_blocks(&self, threads: u32, shared_bytes: u32) -> Result<u64> {
        let device = self.module.device;
        let Entry(name, occupancy) = device.functions().occupancy_max_active_blocks_per_multiprocessor;
        let _entered = device.context.enter()?;
        device.driver().allow_shared(&self.module.state, self.function.0, shared_bytes)?;
        let mut blocks = 0;
        let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
        // SAFETY: `blocks` is valid for the write; a function of a module that lives.
        let result = unsafe { occupancy(&raw mut blocks, self.function.0, threads, shared_bytes as usize) };
        check(device.driver(), result, format_args!("{name}({threads} threads)"))?;
        Ok(u64::try_from(blocks).unwrap_or(0) * u64::from(device.properties.multiprocessors))
    }
}
