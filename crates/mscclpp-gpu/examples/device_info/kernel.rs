//! A kernel, loaded and launched.

use mscclpp_gpu::{
    DeviceBuffer, DevicePtr, Error, Gpu, KernelArgs, KernelSource, LaunchConfig, Module, Stream,
};

use crate::Outcome;

/// Adds the variable `step` to each of `n` words. CUDA loads the PTX; simulated devices compile the text.
pub(crate) const SOURCE: KernelSource<'_> = KernelSource::new(
    "add_step.cu",
    r#"
    __constant__ unsigned int step;

    extern "C" __global__ void add_step(unsigned int* words, unsigned int n) {
      const unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) words[i] += step;
    }
    "#,
)
.with_ptx(&[(80, PTX)]);

const PTX: &str = "
.version 7.0
.target sm_80
.address_size 64
.visible .const .align 4 .b8 step[4];
.visible .entry add_step(.param .u64 words, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [words];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra DONE;
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r5, 4;
    add.s64 %rd4, %rd2, %rd3;
    ld.global.u32 %r6, [%rd4];
    ld.const.u32 %r7, [step];
    add.s32 %r6, %r6, %r7;
    st.global.u32 [%rd4], %r6;
DONE:
    ret;
}
";

/// Loads the module and sets its variable to `step`.
pub(crate) fn load(gpu: &Gpu, step: u32) -> Result<Module, Error> {
    let module = Module::load(gpu, &SOURCE)?;
    module.set_symbol("step", &[step])?;
    Ok(module)
}

pub(crate) fn add(
    module: &Module,
    stream: &Stream,
    words: DevicePtr,
    n: u32,
    shared_bytes: u32,
) -> Result<(), Error> {
    let config = LaunchConfig { shared_bytes, ..LaunchConfig::linear(n.div_ceil(128), 128) };
    // SAFETY: the arguments are the kernel's; the callers keep `n` words until they have waited.
    unsafe { module.kernel("add_step")?.launch(stream, config, &KernelArgs::new().with(words).with(n)) }
}

pub(crate) fn all_words(buffer: &DeviceBuffer, value: u32) -> Outcome {
    let mut bytes = vec![0; buffer.len() as usize];
    buffer.read(0, &mut bytes)?;
    match bytes.chunks_exact(4).map(|w| u32::from_ne_bytes([w[0], w[1], w[2], w[3]])).find(|&w| w != value) {
        None => Ok(()),
        Some(other) => Err(format!("a word is {other}, not {value}").into()),
    }
}
