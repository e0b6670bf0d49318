//! The device API headers and the PTX of the kernels, as strings
