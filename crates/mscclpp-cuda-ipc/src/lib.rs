//! The CUDA IPC transport: peers reach each other's device memory directly
