use mscclpp_gpu::{KernelArgs, KernelSource, LaunchConfig, Module, Platform};

fn main() {
    let gpu = Platform::Host.gpu(0).unwrap();
    let data = gpu.allocate(4096).unwrap();
    let module = Module::load(&gpu, &KernelSource::new("races.cu", include_str!("races.cu"))).unwrap();
    for with in [1, 0] {
        let stream = gpu.stream().unwrap();
        unsafe { module.kernel("barrier").unwrap().launch(&stream, LaunchConfig::linear(1, 64), &KernelArgs::new().with(data.ptr()).with(with)).unwrap() };
        match stream.synchronize() { Ok(()) => println!("ok"), Err(e) => println!("{e}") }
    }
}
