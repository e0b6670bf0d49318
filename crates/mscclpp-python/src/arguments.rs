//! Arguments of kernels: from one run of bytes, as `mscclpp.utils.pack` makes it, to the parameters that a kernel has.
//!
//! What the parameters of a source's kernel are is said by a table that is compiled along with it. PTX says it in its
//! text, which `mscclpp._ptx` reads.

use mscclpp::{ErrorKind, KernelArgs, errors::GpuError, gpu::KernelParam};
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

/// The source, and behind it a table of the kernel's parameters: their number, their sizes, their alignments. Without
/// such a kernel it is the source alone, so that the error is about that.
pub(crate) fn with_table(source: &str, kernel: &str) -> String {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    if !source.split(|c| !is_word(c)).any(|word| word == kernel) {
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
    parameters.iter().zip(starts).try_fold(KernelArgs::new(), |args, (parameter, start)| {
        let bytes = &packed[start..start + parameter.size];
        push_of(parameter.size).map(|push| push(args, bytes)).ok_or_else(|| {
            error::new(
                ErrorKind::InvalidUsage,
                format!(
                    "launch of {kernel}: a parameter of {} bytes cannot be passed by value; pass a pointer to it, or make \
                     it a multiple of 8 bytes and at most 1024",
                    parameter.size
                ),
            )
        })
    })
}

/// Bytes of an argument, whatever they mean.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Bytes<const N: usize>([u8; N]);

// SAFETY: plain bytes without padding, as they are in device code.
unsafe impl<const N: usize> KernelParam for Bytes<N> {}

type Push = fn(KernelArgs, &[u8]) -> KernelArgs;

fn push<const N: usize>(args: KernelArgs, bytes: &[u8]) -> KernelArgs {
    let mut value = [0; N];
    value.copy_from_slice(bytes);
    args.with(Bytes(value))
}

/// The functions that push the sizes of a row: `$step * (8 * row + 0..8)`.
macro_rules! pushes {
    ($step:literal: $($row:literal)*) => {
        [$([
            push::<{ $step * (8 * $row) }>,
            push::<{ $step * (8 * $row + 1) }>,
            push::<{ $step * (8 * $row + 2) }>,
            push::<{ $step * (8 * $row + 3) }>,
            push::<{ $step * (8 * $row + 4) }>,
            push::<{ $step * (8 * $row + 5) }>,
            push::<{ $step * (8 * $row + 6) }>,
            push::<{ $step * (8 * $row + 7) }>,
        ] as [Push; 8]),*]
    };
}

/// What pushes an argument of `size` bytes: any up to 63, and multiples of 8 up to 1024.
fn push_of(size: usize) -> Option<Push> {
    const EACH: [[Push; 8]; 8] = pushes!(1: 0 1 2 3 4 5 6 7);
    const EIGHTS: [[Push; 8]; 17] = pushes!(8: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16);
    let (table, at): (&[[Push; 8]], usize) =
        if size.is_multiple_of(8) { (&EIGHTS, size / 8) } else { (&EACH, size) };
    table.get(at / 8).map(|row| row[at % 8])
}
