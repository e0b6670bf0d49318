//! Tests of the names that CUDA device code has without an include, half and bfloat16, and cooperative groups, on the
//! platform of the machine. The results of one source, `*_builtins.cu` in this folder, are compared with those of Rust.

mod cuda;
mod data_types;
mod groups;
mod half;

use crate::{device, download};
use mscclpp_gpu::{
    DeviceBuffer, DevicePtr, Error, Gpu, KernelArgs, KernelParam, KernelSource, LaunchConfig, Module,
    Platform,
};

fn upload<T: KernelParam>(gpu: &Gpu, elements: &[T]) -> DeviceBuffer {
    let buffer = gpu.allocate(size_of_val(elements) as u64).unwrap();
    buffer.write_params(0, elements).unwrap();
    buffer
}

/// A loaded source and the device it is loaded on.
struct Builtins {
    gpu: Gpu,
    module: Module,
}

impl Builtins {
    fn cuda() -> Self {
        let gpu = device::gpu();
        let text = include_str!("cuda_builtins.cu");
        let module = Module::load(&gpu, &KernelSource::new("cuda_builtins.cu", text)).unwrap();
        Self { gpu, module }
    }

    /// Loads a source that needs headers of a CUDA toolkit. None where a GPU's compiler finds no toolkit.
    fn with_toolkit(name: &str, text: &str) -> Option<Self> {
        let gpu = device::gpu();
        match Module::load(&gpu, &KernelSource::new(name, text)) {
            Ok(module) => Some(Self { gpu, module }),
            Err(error @ Error::Compile { .. })
                if device::platform() != Platform::Sim && error.to_string().contains("could not open") =>
            {
                println!("not tested, as there is no CUDA toolkit: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn launch(&self, kernel: &str, config: LaunchConfig, args: &KernelArgs) {
        let kernel = self.module.kernel(kernel).unwrap();
        let stream = self.gpu.stream().unwrap();
        // SAFETY: the arguments are the kernel's, and the callers keep the memory until this returns.
        unsafe { kernel.launch(&stream, config, args).unwrap() };
        stream.synchronize().unwrap();
    }

    /// Runs a kernel that takes `inputs`, an output with `results` elements for each of the `count` inputs, and the
    /// count. Returns the output.
    fn map<T: KernelParam + Default>(
        &self,
        kernel: &str,
        inputs: &[DevicePtr],
        count: usize,
        results: usize,
    ) -> Vec<T> {
        let output = self.gpu.allocate((count * results * size_of::<T>()) as u64).unwrap();
        let args = inputs.iter().fold(KernelArgs::new(), |args, input| args.with(*input));
        // The number of threads does not divide the counts, so that some threads have less to do.
        self.launch(kernel, LaunchConfig::linear(3, 96), &args.with(output.ptr()).with(count as u32));
        download(&output)
    }
}
