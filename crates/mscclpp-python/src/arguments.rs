//! Arguments of kernels: from one run of bytes, as `mscclpp.utils.pack` makes it, to the parameters that a kernel has.

use mscclpp::{KernelArgs, gpu::KernelParameter};
use pyo3::prelude::*;

use crate::error;

/// Cuts `packed` into the arguments of a kernel. They may be where a C compiler puts the members of a struct, or one
/// directly behind the other.
pub(crate) fn unpack(kernel: &str, parameters: &[KernelParameter], packed: &[u8]) -> PyResult<KernelArgs> {
    let sizes = || parameters.iter().map(|parameter| parameter.size as usize);
    let end = parameters.last().map_or(0, |last| (last.offset + last.size) as usize);
    // An `int` for a `bool` at the end makes it longer.
    let starts: Vec<usize> = if (end..end + 8).contains(&packed.len()) {
        parameters.iter().map(|parameter| parameter.offset as usize).collect()
    } else if packed.len() == sizes().sum::<usize>() {
        let behind = |end: &mut usize, size| Some(std::mem::replace(end, *end + size));
        sizes().scan(0, behind).collect()
    } else {
        let sizes: Vec<usize> = sizes().collect();
        return Err(error::misuse(format!(
            "launch of {kernel}: its parameters have {sizes:?} bytes, {end} in all with the gaps between them, and the \
             packed arguments have {}",
            packed.len()
        )));
    };
    let values = sizes().zip(starts).map(|(size, start)| &packed[start..start + size]);
    Ok(values.fold(KernelArgs::new(), KernelArgs::with_bytes))
}
