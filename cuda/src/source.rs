/// The code of a module, for every platform: CUDA C++, and PTX if it was compiled before.
///
/// CUDA takes the PTX if there is some, and else compiles with NVRTC; the Host platform compiles the same text with a C++
/// compiler. The headers of the device API are always there, so `#include <mscclpp/memory_channel_device.hpp>` works.
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
    headers: &'a [(&'a str, &'a str)],
}

impl<'a> KernelSource<'a> {
    /// CUDA C++, under a name that messages show, such as that of its file.
    #[must_use]
    pub const fn new(name: &'a str, cuda: &'a str) -> Self {
        Self { name, cuda, ptx: &[], headers: &[] }
    }

    /// With the PTX of the same text, which CUDA then loads as it is: the compute capability that each was compiled for,
    /// such as 80 for 8.0, and the PTX. A device takes the one of the highest capability that it has; if there is none, the
    /// text is compiled.
    #[must_use]
    pub const fn with_ptx(self, ptx: &'a [(u32, &'a str)]) -> Self {
        Self { ptx, ..self }
    }

    /// With further headers: the name of each as it is included, a relative path, and its text.
    #[must_use]
    pub const fn with_headers(self, headers: &'a [(&'a str, &'a str)]) -> Self {
        Self { headers, ..self }
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'a str {
        self.name
    }

    /// The CUDA C++ text.
    #[must_use]
    pub const fn cuda(&self) -> &'a str {
        self.cuda
    }

    /// Its PTX for a device of that compute capability (80 for 8.0), if there is some.
    #[must_use]
    pub fn ptx_for(&self, capability: u32) -> Option<&'a str> {
        let usable = self.ptx.iter().filter(|(needed, _)| *needed <= capability);
        usable.max_by_key(|(needed, _)| *needed).map(|(_, ptx)| *ptx)
    }

    /// The headers beside those of the device API.
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
        let source = KernelSource::new("a.cu", "").with_ptx(&[(80, "old"), (100, "newest"), (90, "new")]);
        assert_eq!(
            [75, 80, 89, 90, 121].map(|c| source.ptx_for(c)),
            [None, Some("old"), Some("old"), Some("new"), Some("newest")]
        );
        assert_eq!(KernelSource::new("a.cu", "").ptx_for(90), None);
    }
}
