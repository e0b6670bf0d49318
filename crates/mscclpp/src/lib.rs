//! GPU communication from inside kernels: bootstrap, connections, semaphores and channels
