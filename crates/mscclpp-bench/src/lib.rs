//! Benchmarks of the communication stack
