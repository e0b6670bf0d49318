//! Arguments of kernels: from one run of bytes, as `mscclpp.utils.pack` makes it, to the parameters that a kernel has.
//!
//! What the parameters of a source's kernel are is said by a table that is compiled along with it. PTX says it in its
//! text, which `mscclpp._ptx` reads.

use mscclpp::{KernelArgs, errors::GpuError};
use pyo3::prelude::*;

use crate::error;

/// A parameter of a kernel, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parameter {
    pub(crate) size: usize,
    pub(crate) alignment: usize,
}

/// The variable that [`with_table`] adds.
pub(crate) const TABLE: &str = "mscclpp_python_parameters";

/// The source, and behind it a table of the kernel's parameters: their number, their sizes, their alignments. If neither
/// the source nor a header can have such a kernel, it is the source alone, so that the error is about that.
pub(crate) fn with_table(source: &str, headers: &[(&str, &str)], kernel: &str) -> String {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    // `##` of a macro may put the name together.
    let can_have =
        |text: &str| text.contains("##") || text.split(|c| !is_word(c)).any(|word| word == kernel);
    if !can_have(source) && !headers.iter().any(|(_, text)| can_have(text)) {
        return source.to_owned();
    }
    format!(
        "{source}\n\
         #line 1 \"parameters of {kernel}\"\n\
         namespace mscclpp_python {{\n\
         template <class Function> struct Parameters;\n\
         template <class... Types> struct Parameters<void(Types...)> {{\n\
         struct Table {{ unsigned long long words[1 + 2 * sizeof...(Types)]; }};\n\
         static constexpr Table table() {{ return Table{{{{sizeof...(Types), sizeof(Types)..., alignof(Types)...}}}}; }}\n\
         }};\n\
         }}\n\
         extern \"C\" {{\n\
         __device__ mscclpp_python::Parameters<decltype(::{kernel})>::Table {TABLE} =\n\
         mscclpp_python::Parameters<decltype(::{kernel})>::table();\n\
         // A compiler may drop what no kernel reads.\n\
         __global__ void {TABLE}_kept(unsigned long long* count) {{ *count = {TABLE}.words[0]; }}\n\
         }}\n"
    )
}

/// Reads that table.
pub(crate) fn of_table(bytes: &[u8]) -> Result<Vec<Parameter>, GpuError> {
    let words: Vec<usize> = bytes
        .chunks_exact(8)
        .map(|word| u64::from_ne_bytes(std::array::from_fn(|i| word[i])) as usize)
        .collect();
    match words.split_first() {
        Some((&count, rest)) if rest.len() == 2 * count => {
            let (sizes, alignments) = rest.split_at(count);
            let parameters = sizes.iter().zip(alignments);
            Ok(parameters.map(|(&size, &alignment)| Parameter { size, alignment }).collect())
        }
        _ => Err(GpuError::InvalidArgument(format!(
            "{TABLE} has {} bytes that are no such table",
            bytes.len()
        ))),
    }
}

/// Cuts `packed` into the arguments of a kernel. They may be where a C compiler puts the members of a struct, or one
/// directly behind the other.
pub(crate) fn unpack(kernel: &str, parameters: &[Parameter], packed: &[u8]) -> PyResult<KernelArgs> {
    let mut aligned = Vec::with_capacity(parameters.len());
    let (mut end, mut sum) = (0usize, 0);
    for Parameter { size, alignment } in parameters {
        let start = end.next_multiple_of((*alignment).max(1));
        aligned.push(start);
        (end, sum) = (start + size, sum + size);
    }
    // An `int` for a `bool` at the end makes it longer.
    let starts: Vec<usize> = if (end..end + 8).contains(&packed.len()) {
        aligned
    } else if packed.len() == sum {
        parameters
            .iter()
            .scan(0, |end, parameter| {
                *end += parameter.size;
                Some(*end - parameter.size)
            })
            .collect()
    } else {
        let sizes: Vec<usize> = parameters.iter().map(|parameter| parameter.size).collect();
        return Err(error::misuse(format!(
            "launch of {kernel}: its parameters have {sizes:?} bytes, {end} in all with the gaps between them, and the \
             packed arguments have {}",
            packed.len()
        )));
    };
    let values = parameters.iter().zip(starts).map(|(parameter, start)| &packed[start..start + parameter.size]);
    Ok(values.fold(KernelArgs::new(), KernelArgs::with_bytes))
}
