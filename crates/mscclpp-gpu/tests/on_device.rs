//! Tests that need a GPU but no kernel: the context that a thread had, and values written by copies.

mod needs;

use std::{process::ExitCode, ptr, thread};

use libtest_mimic::Arguments;
use mscclpp_gpu::{Platform, test_support};
use mscclpp_gpu_sys::cuda::{CUcontext, CuResult, Driver};

fn main() -> ExitCode {
    let trials = vec![
        needs::cuda_devices(
            1,
            "a_thread_without_a_context_keeps_the_first_it_needed",
            a_thread_without_a_context_keeps_the_first_it_needed,
        ),
        needs::cuda_devices(
            2,
            "the_current_context_of_the_thread_comes_back",
            the_current_context_of_the_thread_comes_back,
        ),
        needs::cuda_devices(
            1,
            "values_written_by_copies_arrive_in_the_order_of_the_stream",
            values_written_by_copies_arrive_in_the_order_of_the_stream,
        ),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn current() -> CUcontext {
    let mut context = ptr::null_mut();
    // SAFETY: `context` is valid for the write.
    let result = unsafe { (Driver::load().unwrap().ctx_get_current)(&raw mut context) };
    assert_eq!(result, CuResult::SUCCESS);
    context
}

fn a_thread_without_a_context_keeps_the_first_it_needed() {
    let gpu = Platform::Cuda.gpu(0).unwrap();
    gpu.make_current().unwrap();
    // A pointer may not go to another thread; its address may.
    let primary = current().addr();
    thread::spawn(move || {
        assert!(current().is_null(), "a new thread has a context");
        gpu.allocate(8).unwrap();
        assert_eq!(current().addr(), primary);
    })
    .join()
    .unwrap();
}

fn the_current_context_of_the_thread_comes_back() {
    let (gpu, other) = (Platform::Cuda.gpu(0).unwrap(), Platform::Cuda.gpu(1).unwrap());
    gpu.make_current().unwrap();
    let before = current();
    let buffer = other.allocate(8).unwrap();
    assert_eq!(current(), before, "after an allocation");
    buffer.write(0, &[1; 8]).unwrap();
    let stream = other.stream().unwrap();
    // SAFETY: the buffer outlives the work, which is waited for.
    unsafe { stream.write_u64(buffer.ptr(), 7).unwrap() };
    stream.synchronize().unwrap();
    assert_eq!(current(), before, "after work on a stream");
    drop((stream, buffer));
    assert_eq!(current(), before, "after dropping it all");
    // And it tells which device is meant where none is named.
    assert_eq!(Platform::Cuda.current_gpu().unwrap().id(), 0);
    other.make_current().unwrap();
    assert_eq!(Platform::Cuda.current_gpu().unwrap().id(), 1);
}

fn values_written_by_copies_arrive_in_the_order_of_the_stream() {
    let gpu = Platform::Cuda.gpu(0).unwrap();
    let (word, stream) = (gpu.allocate(8).unwrap(), gpu.stream().unwrap());
    for value in 1..=1000 {
        // SAFETY: 8 bytes of memory that outlives the stream's work.
        unsafe { test_support::write_u64_by_copy(&stream, word.ptr(), value).unwrap() };
    }
    stream.synchronize().unwrap();
    let mut last = [0; 8];
    word.read(0, &mut last).unwrap();
    assert_eq!(u64::from_ne_bytes(last), 1000);
}
