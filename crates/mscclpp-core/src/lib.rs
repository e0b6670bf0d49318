//! Endpoints, connections, registered memory, semaphores and memory channels, independent of any transport
