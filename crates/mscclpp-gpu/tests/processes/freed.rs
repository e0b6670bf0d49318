//! A kernel that uses freed memory, in a process of its own: elsewhere another test could have got the address meanwhile.

use libtest_mimic::Trial;
use mscclpp_gpu::{Error, KernelArgs, KernelSource, LaunchConfig, Module, Platform};
use mscclpp_test_support::{
    LIMIT,
    child::{as_child, output_within},
};

const SOURCE: KernelSource<'_> = KernelSource::new("kernels.cu", include_str!("../it/kernels.cu"));

pub(crate) fn trial() -> Trial {
    Trial::test("a_kernel_that_uses_freed_memory_fails", || {
        let output = output_within(LIMIT, &mut as_child(&["freed"]));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    })
}

/// Uses the memory before it is freed, and after.
pub(crate) fn use_freed_memory() {
    let gpu = Platform::Sim.gpu(0).expect("a device");
    let kernel = Module::load(&gpu, &SOURCE).expect("a module").kernel("touch").expect("a kernel");
    let (stream, buffer) = (gpu.stream().expect("a stream"), gpu.allocate(4096).expect("memory"));
    let args = KernelArgs::new().with(buffer.ptr()).with(3u32);
    let run = || {
        // SAFETY: the kernel's arguments. Nobody else gets the memory's address in this process.
        unsafe { kernel.launch(&stream, LaunchConfig::linear(2, 8), &args) }.expect("a launch");
        stream.synchronize_timeout(LIMIT)
    };
    run().expect("the memory is there");
    drop(buffer);
    let told = run();
    assert!(matches!(&told, Err(Error::KernelFailed { kernel, .. }) if kernel == "touch"), "{told:?}");
}
