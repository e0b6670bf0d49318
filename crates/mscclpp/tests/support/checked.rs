//! Kernels that check what they find themselves, and report the line of a check that failed.

use mscclpp::{Stream, prelude::*};

use super::LIMIT;

/// The kernels of a source on one device, and the words in which they report.
pub(crate) struct Checked {
    file: &'static str,
    module: Module,
    stream: Stream,
    pub(crate) said: DeviceBuffer,
}

impl Checked {
    pub(crate) fn new(gpu: &Gpu, file: &'static str, source: &KernelSource<'_>) -> Self {
        let said = gpu.allocate(8).expect("memory");
        said.fill(0, 8, 0).expect("memory");
        let module = Module::load(gpu, source).expect("kernels");
        Self { file, module, stream: gpu.stream().expect("a stream"), said }
    }

    pub(crate) fn start(&self, kernel: &str, shape: LaunchConfig, args: &KernelArgs) {
        let kernel = self.module.kernel(kernel).expect("a kernel of the module");
        // SAFETY: callers give the kernel's arguments and keep the objects in them until `finish`.
        unsafe { kernel.launch(&self.stream, shape, args).expect("a launch") };
    }

    /// Waits for the kernel, and checks that it found nothing wrong.
    pub(crate) fn finish(&self, kernel: &str) {
        let ended = self.stream.synchronize_timeout(LIMIT);
        let line = word(&self.said, 0);
        assert_eq!(line, 0, "{kernel}: the check in line {line} of {}", self.file);
        ended.expect(kernel);
    }
}

pub(crate) fn word(buffer: &DeviceBuffer, offset: u64) -> u32 {
    let mut word = [0; 4];
    buffer.read(offset, &mut word).expect("results");
    u32::from_ne_bytes(word)
}

/// Whether kernels can use bulk copies on this device.
pub(crate) fn has_bulk(gpu: &Gpu) -> bool {
    gpu.properties().compute_capability.is_none_or(|(major, _)| major >= 9)
}
