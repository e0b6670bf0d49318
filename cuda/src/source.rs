/// The code of a module, for every platform: CUDA C++, and PTX if it was compiled before.
///
/// CUDA takes the PTX if there is some, and else compiles with NVRTC; simulated devices compile the same text with a C++
/// compiler. The headers of the device API are always available, so `#include <mscclpp/memory_channel_device.hpp>` works.
/// Kernels must be `extern "C"` to be found by their name.
///
/// ```
/// # use mscclpp_kernels::KernelSource;
/// const SCALE: KernelSource = KernelSource::new(
///     "scale.cu",
///     r#"extern "C" __global__ void scale(float* x, float by) { x[threadIdx.x] *= by; }"#,
/// );
/// assert_eq!(SCALE.name(), "scale.cu");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct KernelSource<'a> {
    name: &'a str,
    cuda: &'a str,
    ptx: &'a [(u32, &'a str)],
    compressed_ptx: &'a [(u32, &'a [u8])],
    headers: &'a [(&'a str, &'a str)],
}

/// PTX that a [`KernelSource`] brings along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ptx<'a> {
    /// The text.
    Text(&'a str),
    /// A zlib stream that holds the text.
    Compressed(&'a [u8]),
}

impl<'a> KernelSource<'a> {
    /// Makes a source of CUDA C++, under a name that messages show, such as that of its file.
    #[must_use]
    pub const fn new(name: &'a str, cuda: &'a str) -> Self {
        Self { name, cuda, ptx: &[], compressed_ptx: &[], headers: &[] }
    }

    /// Adds the PTX of the same text, which CUDA then loads as it is: the compute capability that each was compiled for,
    /// such as 80 for 8.0, and the PTX. A device takes the one of the highest capability that it has; if there is none,
    /// the text is compiled.
    #[must_use]
    pub const fn with_ptx(self, ptx: &'a [(u32, &'a str)]) -> Self {
        Self { ptx, ..self }
    }

    /// Adds the PTX of the same text, as the bytes of a zlib stream. The kernels of this repository have their PTX in this form.
    #[must_use]
    pub const fn with_compressed_ptx(self, compressed_ptx: &'a [(u32, &'a [u8])]) -> Self {
        Self { compressed_ptx, ..self }
    }

    /// Adds further headers: the name of each as it is included, a relative path, and its text.
    #[must_use]
    pub const fn with_headers(self, headers: &'a [(&'a str, &'a str)]) -> Self {
        Self { headers, ..self }
    }

    /// Returns the name of the source.
    #[must_use]
    pub const fn name(&self) -> &'a str {
        self.name
    }

    /// Returns the CUDA C++ text.
    #[must_use]
    pub const fn cuda(&self) -> &'a str {
        self.cuda
    }

    /// The PTX for a device of that compute capability (80 for 8.0), if there is some. `mscclpp_gpu::ptx_of` gives it as text in
    /// either case.
    #[must_use]
    pub fn ptx_for(&self, capability: u32) -> Option<Ptx<'a>> {
        let text = self.ptx.iter().map(|(needed, ptx)| (*needed, Ptx::Text(ptx)));
        let compressed = self.compressed_ptx.iter().map(|(needed, ptx)| (*needed, Ptx::Compressed(ptx)));
        let usable = text.chain(compressed).filter(|(needed, _)| *needed <= capability);
        usable.max_by_key(|(needed, _)| *needed).map(|(_, ptx)| ptx)
    }

    /// Returns the headers besides those of the device API.
    #[must_use]
    pub const fn headers(&self) -> &'a [(&'a str, &'a str)] {
        self.headers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_takes_the_ptx_of_the_highest_capability_that_it_has() {
        let source = KernelSource::new("a.cu", "").with_ptx(&[(80, "old"), (100, "newest")]);
        let source = source.with_compressed_ptx(&[(90, &[1, 2])]);
        let [old, newest] = ["old", "newest"].map(|text| Some(Ptx::Text(text)));
        assert_eq!(
            [75, 80, 89, 90, 121].map(|c| source.ptx_for(c)),
            [None, old, old, Some(Ptx::Compressed(&[1, 2])), newest]
        );
        assert_eq!(KernelSource::new("a.cu", "").ptx_for(90), None);
    }
}
