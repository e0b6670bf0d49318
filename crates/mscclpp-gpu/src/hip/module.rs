use std::{ptr, sync::Arc};

use mscclpp_gpu_sys::hip::{Hip, HipResult};

use super::Device;
use crate::{
    Error, Result,
    driver::{
        failure::{check, failure},
        module::{Loaded, Module},
    },
};

/// Loads a code object of the program `name`.
///
/// # Safety
/// It is whole, as a compiler made it.
pub(super) unsafe fn load(device: &'static Device, name: &str, code: &[u8]) -> Result<Module<Hip>> {
    let hip = device.driver();
    let _entered = device.context.enter()?;
    device.retired_modules.unload(hip);
    let mut raw = ptr::null_mut();
    // SAFETY: `raw` is valid for the write; `code` is a whole code object (the caller's promise), whose size is in it.
    let result = unsafe { (hip.module_load_data)(&raw mut raw, code.as_ptr().cast()) };
    if let HipResult::INVALID_IMAGE | HipResult::NO_BINARY_FOR_GPU | HipResult::INVALID_KERNEL_FILE = result {
        let log = failure(hip, result, "hipModuleLoadData").to_string();
        return Err(Error::Compile { name: format!("the code of {name}"), log });
    }
    check(hip, result, "hipModuleLoadData")?;
    Ok(Module { loaded: Arc::new(Loaded::new(device, raw)), kernels: None, variables: None })
}
