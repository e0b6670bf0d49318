//! The compilers of kernels at run time: NVRTC for CUDA, a C++ compiler for simulated devices.

use mscclpp::Platform;

use super::{child::Teller, finding::Section::Compilers as SECTION};

pub(super) fn examine(teller: &Teller) {
    teller.trying("looking for devices");
    let platform = Platform::detect_or_sim().ok();
    teller.trying("loading NVRTC and compiling a kernel");
    teller.found(match nvrtc() {
        Ok(version) => SECTION.ok("NVRTC", version),
        Err(reason) => {
            let remedy = "none is needed for the kernels of this library; for your own on CUDA, name the file of an NVRTC in \
                          MSCCLPP_NVRTC_SO";
            SECTION.unavailable("NVRTC", reason, remedy)
        }
    });
    teller.trying("running C++ compilers");
    teller.found(match mscclpp_gpu::sim_compiler() {
        Ok(version) => SECTION.ok("C++", version),
        Err(error) => {
            // Without a compiler, simulated devices can run only kernels that are in the cache.
            let is_needed = platform == Some(Platform::Sim);
            let reason = match error {
                mscclpp_gpu::Error::NoCompiler { tried } => format!("none runs; tried {tried}"),
                other => other.to_string(),
            };
            let remedy =
                "only simulated devices need one: install g++ or clang++, or name one in MSCCLPP_CXX";
            SECTION.failed("C++", reason, remedy, is_needed)
        }
    });
}

/// The description of NVRTC, once it has compiled a kernel. The result is not kept.
#[cfg(any(feature = "cuda-12040", feature = "cuda-13000"))]
fn nvrtc() -> Result<String, String> {
    use mscclpp::gpu::nvrtc;
    let text = |error: mscclpp_gpu::Error| mscclpp::Report(&error).to_string();
    let kernel = "extern \"C\" __global__ void nothing() {}";
    let options = ["--gpu-architecture=compute_80"];
    let version = nvrtc::description().map_err(text)?;
    nvrtc::compile("nothing.cu", kernel, &[], &options)
        .map_err(|error| format!("{version}: {}", text(error)))?;
    Ok(version)
}

#[cfg(not(any(feature = "cuda-12040", feature = "cuda-13000")))]
fn nvrtc() -> Result<String, String> {
    Err("this program was built without CUDA (feature cuda-12040)".to_owned())
}
