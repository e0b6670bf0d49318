//! The PTX that sources bring along, as text.

use std::borrow::Cow;

use mscclpp_kernels::{KernelSource, Ptx};

use crate::{Error, Result};

/// The most that PTX may have when it is unpacked: far more than any kernel has.
const MOST_BYTES: usize = 256 << 20;

/// The PTX that `source` has for a device of that compute capability (80 for 8.0), as text; `None` if it has none.
///
/// ```
/// let ptx = mscclpp_gpu::ptx_of(&mscclpp_kernels::PING_PONG, 90)?.expect("it comes with the crate");
/// assert!(ptx.contains(".entry ping_pong_spin("));
/// # Ok::<(), mscclpp_gpu::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`] for [compressed](KernelSource::with_compressed_ptx) PTX that is no zlib stream, or not of text.
pub fn ptx_of<'a>(source: &KernelSource<'a>, capability: u32) -> Result<Option<Cow<'a, str>>> {
    let compressed = match source.ptx_for(capability) {
        None => return Ok(None),
        Some(Ptx::Text(text)) => return Ok(Some(Cow::Borrowed(text))),
        Some(Ptx::Compressed(bytes)) => bytes,
    };
    let refused = |why: &dyn std::fmt::Display| {
        Err(Error::InvalidArgument(format!(
            "the compressed PTX of {} cannot be unpacked: {why}",
            source.name()
        )))
    };
    match miniz_oxide::inflate::decompress_to_vec_zlib_with_limit(compressed, MOST_BYTES)
        .map(String::from_utf8)
    {
        Ok(Ok(text)) => Ok(Some(Cow::Owned(text))),
        Ok(Err(error)) => refused(&error),
        Err(error) => refused(&error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_has_its_ptx() {
        use mscclpp_kernels::*;
        let kernels = [
            ALL_REDUCE_RMS_NORM,
            BIDIR_MEMORY_CHANNEL,
            BIDIR_PORT_CHANNEL,
            COLLECTIVES,
            CUSTOM_PROXY,
            MESH_PORT_CHANNELS,
            PING_PONG,
            SIGNAL_PING_PONG,
        ];
        for source in kernels {
            let ptx = ptx_of(&source, 80).expect("a zlib stream").expect("checked in");
            let names =
                source.cuda().split("__global__ void ").skip(1).filter_map(|rest| rest.split('(').next());
            for name in names.filter(|name| !name.contains("__launch_bounds__") && !name.contains('#')) {
                assert!(ptx.contains(&format!(".entry {name}(")), "{}: no entry {name}", source.name());
            }
        }
    }

    #[test]
    fn what_is_no_zlib_stream_is_refused() {
        for bytes in [&b""[..], b"plain text", &[0x78, 0x9c, 1, 2, 3]] {
            let ptx = [(80, bytes)];
            let source = KernelSource::new("broken.cu", "").with_compressed_ptx(&ptx);
            let error = ptx_of(&source, 80).expect_err("it cannot be unpacked").to_string();
            assert!(error.contains("the compressed PTX of broken.cu cannot be unpacked"), "{error}");
        }
    }
}
