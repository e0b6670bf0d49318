//! The program of the book's page about testing kernels on simulated devices, and the messages that it shows.

// ANCHOR: uses
use std::time::Duration;

use mscclpp::prelude::*;
// ANCHOR_END: uses

// ANCHOR: kernel
/// Adds up numbers with one block of 256 threads.
const SUM: KernelSource<'static> = KernelSource::new(
    "sum.cu",
    r#"
    extern "C" __global__ void sum(const unsigned int* numbers, unsigned int count, unsigned int* result) {
      __shared__ unsigned int parts[256];
      unsigned int part = 0;
      for (unsigned int i = threadIdx.x; i < count; i += blockDim.x) part += numbers[i];
      parts[threadIdx.x] = part;
      for (unsigned int half = blockDim.x / 2; half != 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
      }
      if (threadIdx.x == 0) *result = parts[0];
    }
    "#,
);
// ANCHOR_END: kernel

// ANCHOR: test
#[test]
fn the_sum_is_that_of_all_numbers() -> mscclpp::Result<()> {
    let gpu = Platform::Sim.gpu(0)?;
    let stream = gpu.stream()?;
    let kernel = Module::load(&gpu, &SUM)?.kernel("sum")?;
    for count in [0, 1, 255, 256, 257, 10_000] {
        let numbers: Vec<u8> = (0..count).flat_map(u32::to_ne_bytes).collect();
        let (input, result) = (gpu.allocate(40_000)?, gpu.allocate(4)?);
        input.write(0, &numbers)?;

        let args = KernelArgs::new().with(&input).with(count).with(&result);
        // SAFETY: these are the kernel's parameters.
        unsafe { kernel.launch(&stream, LaunchConfig::linear(1, 256), &args)? };
        stream.synchronize_timeout(Duration::from_secs(30))?;

        let mut bytes = [0; 4];
        result.read(0, &mut bytes)?;
        assert_eq!(u32::from_ne_bytes(bytes), (0..count).sum::<u32>(), "{count} numbers");
    }
    Ok(())
}
// ANCHOR_END: test

/// Runs a kernel with this faulty body and memory of 4096 bytes, and returns the error.
fn fault(body: &str) -> String {
    let source = format!(
        r#"
#include <assert.h>
#include <mscclpp/memory_channel_device.hpp>
extern "C" __global__ void wrong(unsigned int* memory) {{
{body}
}}
"#
    );
    let run = || -> mscclpp::Result<()> {
        let gpu = Platform::Sim.gpu(0)?;
        let stream = gpu.stream()?;
        let kernel = Module::load(&gpu, &KernelSource::new("wrong.cu", &source))?.kernel("wrong")?;
        let args = KernelArgs::new().with(&gpu.allocate(4096)?);
        // SAFETY: this is the kernel's parameter.
        unsafe { kernel.launch(&stream, LaunchConfig::linear(1, 64), &args)? };
        Ok(stream.synchronize_timeout(Duration::from_secs(30))?)
    };
    let text = mscclpp::Report(&run().expect_err("it does what it must not")).to_string();
    println!("{text}\n");
    text
}

#[test]
fn an_access_outside_of_the_memory_is_an_error_that_says_where() {
    let text = fault("  mscclpp::write<unsigned int>(memory, 1 << 20, threadIdx.x);");
    assert!(text.contains("kernel wrong failed: "), "{text}");
    assert!(text.contains("block [0, 0, 0], thread [0, 0, 0]: writing 4 bytes at "), "{text}");
}

#[test]
fn a_barrier_that_not_all_threads_reach_is_an_error_and_no_hang() {
    let text = fault("  if (threadIdx.x == 0) __syncwarp();\n  else __syncthreads();");
    assert!(text.contains("kernel wrong failed: "), "{text}");
}

#[test]
fn a_failed_assertion_is_an_error_that_says_which() {
    let text = fault("  assert(threadIdx.x != 7 && \"seven is not allowed\");");
    assert!(text.contains("seven is not allowed") && text.contains("wrong.cu:5"), "{text}");
}

#[test]
fn inline_assembly_is_an_error_that_names_its_line() {
    let text = fault("  asm volatile(\"membar.gl;\");");
    assert!(text.contains("wrong.cu:5"), "{text}");
}
