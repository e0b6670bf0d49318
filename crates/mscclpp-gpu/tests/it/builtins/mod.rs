//! Tests of the names that CUDA device code has without an include, half and bfloat16, and cooperative groups, on the
//! platform of the machine. The results of one source, `*_builtins.cu` in this folder, are compared with those of Rust.

mod cuda;
mod data_types;
mod groups;
mod half;

use crate::device;
use mscclpp_gpu::{
    DeviceBuffer, DevicePtr, Error, Gpu, KernelArgs, KernelSource, LaunchConfig, Module, Platform,
};

/// An element type of the memory that a kernel reads and writes.
trait Element: Copy {
    fn bytes(&self) -> Vec<u8>;
    fn all_from(bytes: &[u8]) -> Vec<Self>;
}

macro_rules! elements {
    ($($t:ty),*) => { $(
        impl Element for $t {
            fn bytes(&self) -> Vec<u8> {
                self.to_ne_bytes().to_vec()
            }
            fn all_from(bytes: &[u8]) -> Vec<Self> {
                bytes.as_chunks().0.iter().map(|chunk| Self::from_ne_bytes(*chunk)).collect()
            }
        }
    )* };
}
elements!(u8, u16, u32, u64, i64, f32);

fn upload<T: Element>(gpu: &Gpu, elements: &[T]) -> DeviceBuffer {
    let bytes: Vec<u8> = elements.iter().flat_map(Element::bytes).collect();
    let buffer = gpu.allocate(bytes.len() as u64).unwrap();
    buffer.write(0, &bytes).unwrap();
    buffer
}

fn download<T: Element>(buffer: &DeviceBuffer) -> Vec<T> {
    let mut bytes = vec![0; buffer.len() as usize];
    buffer.read(0, &mut bytes).unwrap();
    T::all_from(&bytes)
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
    fn map<T: Element>(&self, kernel: &str, inputs: &[DevicePtr], count: usize, results: usize) -> Vec<T> {
        let output = self.gpu.allocate((count * results * size_of::<T>()) as u64).unwrap();
        let args = inputs.iter().fold(KernelArgs::new(), |args, input| args.with(*input));
        // The number of threads does not divide the counts, so that some threads have less to do.
        self.launch(kernel, LaunchConfig::linear(3, 96), &args.with(output.ptr()).with(count as u32));
        download(&output)
    }
}

/// Random numbers (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}
