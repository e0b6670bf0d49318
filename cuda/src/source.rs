/// The code of a module, for every platform: CUDA C++, and PTX if it was compiled before.
///
/// CUDA takes the PTX if there is some, and else compiles with NVRTC; the Host platform compiles the same text with a C++
/// compiler. The headers of the device API are always there, so `#include <mscclpp/memory_channel_device.hpp>` works.
/// Kernels must be `extern "C"` to be found by their name.
///
/// ```
/// use mscclpp_kernels::KernelSource;
///
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
    ptx: Option<&'a str>,
    headers: &'a [(&'a str, &'a str)],
}

impl<'a> KernelSource<'a> {
    /// CUDA C++, under a name that messages show, such as that of its file.
    #[must_use]
    pub const fn new(name: &'a str, cuda: &'a str) -> Self {
        Self { name, cuda, ptx: None, headers: &[] }
    }

    /// With the PTX of the same text, which CUDA then loads as it is.
    #[must_use]
    pub const fn with_ptx(self, ptx: &'a str) -> Self {
        Self { ptx: Some(ptx), ..self }
    }

    /// With further headers: the name of each as it is included, and its text.
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

    /// Its PTX, if there is some.
    #[must_use]
    pub const fn ptx(&self) -> Option<&'a str> {
        self.ptx
    }

    /// The headers beside those of the device API.
    #[must_use]
    pub const fn headers(&self) -> &'a [(&'a str, &'a str)] {
        self.headers
    }
}
