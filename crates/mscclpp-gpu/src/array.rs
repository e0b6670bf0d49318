//! Arrays of the values that kernels get for objects, in the memory of a device.

use std::sync::Arc;

use crate::{DeviceBuffer, DevicePtr, Gpu, KernelArgs, KernelArgument, KernelParam, Result};

impl KernelArgs {
    /// Adds a pointer to an array in `gpu`'s memory with the values that kernels get for `objects`, such as a slice of
    /// channels, semaphores or buffers: their device handles or addresses. If there are none, the pointer is null.
    ///
    /// The array is made and filled now, which blocks for a moment, and like the objects it is kept until launches are
    /// complete. It is the same for all launches with these arguments; so make them once for many.
    ///
    /// ```
    /// # use mscclpp_gpu::{KernelArgs, KernelSource, LaunchConfig, Module, Platform};
    /// # let gpu = Platform::Sim.gpu(0)?;
    /// # let source = r#"extern "C" __global__ void sum(int** parts, int count) {
    /// #     for (int i = 1; i < count; ++i) *parts[0] += *parts[i];
    /// # }"#;
    /// # let kernel = Module::load(&gpu, &KernelSource::new("sum.cu", source))?.kernel("sum")?;
    /// # let stream = gpu.stream()?;
    /// let parts = [gpu.allocate(4)?, gpu.allocate(4)?, gpu.allocate(4)?];
    /// for (part, value) in parts.iter().zip([1, 20, 300]) {
    ///     part.write_params(0, &[value])?;
    /// }
    /// // `__global__ void sum(int** parts, int count)` adds all to the first.
    /// let args = KernelArgs::new().with_array(&gpu, &parts).with(parts.len() as i32);
    /// // SAFETY: these are the kernel's parameters.
    /// unsafe { kernel.launch(&stream, LaunchConfig::linear(1, 1), &args)? };
    /// stream.synchronize()?;
    /// let mut sum = [0i32];
    /// parts[0].read_params(0, &mut sum)?;
    /// assert_eq!(sum, [321]);
    /// # Ok::<(), mscclpp_gpu::Error>(())
    /// ```
    ///
    /// If an object has no value, or there is no memory, launches with these arguments fail.
    #[must_use]
    pub fn with_array<I>(mut self, gpu: &Gpu, objects: I) -> Self
    where
        I: IntoIterator<Item: KernelArgument>,
    {
        let (mut owners, mut params) = (Vec::new(), Ok(Vec::new()));
        for object in objects {
            owners.extend(object.owner());
            params = params.and_then(|mut params| {
                params.push(object.param()?);
                Ok(params)
            });
        }
        let array = params.and_then(|params| uploaded(gpu, &params));
        self.push::<I, _>(array.as_ref().map_or_else(
            |error| Err(error.clone()),
            |array| Ok(array.as_ref().map_or(DevicePtr::NULL, DeviceBuffer::ptr)),
        ));
        owners.extend(array.ok().flatten().map(|array| array.owner()));
        self.with_owner(Arc::new(owners))
    }
}

/// Copies the values to `gpu`'s memory. Returns nothing if there are none.
fn uploaded<P: KernelParam>(gpu: &Gpu, params: &[P]) -> Result<Option<DeviceBuffer>> {
    if params.is_empty() {
        return Ok(None);
    }
    let array = gpu.allocate(size_of_val(params) as u64)?;
    array.write_params(0, params)?;
    Ok(Some(array))
}
