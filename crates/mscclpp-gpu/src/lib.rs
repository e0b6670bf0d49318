//! Safe GPU devices, buffers, streams, kernels and memory sharing between processes, with a simulated Host platform
