//! The steps that are tried on every device.

use std::sync::atomic::Ordering;

use mscclpp_gpu::{DevicePtr, Error, Gpu, Module, Platform, Stream};

use crate::{
    Outcome, PATTERN, SECONDS, expect,
    kernel::{SOURCE, add, all_words, load},
    sharing::{export_to_process, export_to_self},
};

pub(crate) type Step = (&'static str, fn(&Gpu) -> Outcome);

pub(crate) const ALL: [Step; 13] = [
    ("memory info", memory_info),
    ("allocate, zeroed; write, read, fill", buffers),
    ("pinned memory and stream copies", pinned),
    ("stream value writes", value_writes),
    ("events", events),
    ("module, variable and kernel", kernel),
    ("errors of modules", module_errors),
    ("graph, replayed", graph),
    ("the library inside someone's capture", inside_a_capture),
    ("default and wrapped streams", other_streams),
    ("current device and owner of an address", identity),
    ("export and import in this process", export_to_self),
    ("export to another process", |gpu| export_to_process(gpu, gpu)),
];

fn memory_info(gpu: &Gpu) -> Outcome {
    let info = gpu.memory_info()?;
    println!("    {} of {} MiB free", info.free >> 20, info.total >> 20);
    expect("free memory is at most all", info.free <= info.total && info.total > 0)
}

fn buffers(gpu: &Gpu) -> Outcome {
    let len = (5 << 20) + 3;
    let buffer = gpu.allocate(len)?;
    let mut bytes = vec![1; len as usize];
    buffer.read(0, &mut bytes)?;
    expect("new memory is zero", bytes.iter().all(|&b| b == 0))?;
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = (i * 7 % 251) as u8;
    }
    buffer.write(0, &bytes)?;
    buffer.fill(3, 4, 0xee)?;
    bytes[3..7].fill(0xee);
    let mut back = vec![0; len as usize];
    buffer.read(0, &mut back)?;
    expect("what was written is read", bytes == back)?;
    expect(
        "a range past the end is refused",
        matches!(buffer.read(len, &mut [0]), Err(Error::OutOfBounds { .. })),
    )
}

fn pinned(gpu: &Gpu) -> Outcome {
    let (host, device, stream) = (gpu.allocate_pinned(64)?, gpu.allocate(64)?, gpu.stream()?);
    expect("new pinned memory is zero", host.word(56)?.load(Ordering::Relaxed) == 0)?;
    host.word(0)?.store(PATTERN, Ordering::Relaxed);
    // SAFETY: all ranges are inside buffers that outlive the work, which is waited for.
    unsafe {
        stream.copy(device.ptr(), host.ptr(), 64)?;
        stream.fill(device.ptr().add(8), 8, 0x5a)?;
        stream.copy(host.ptr().add(16), device.ptr(), 16)?;
    }
    stream.synchronize_timeout(SECONDS)?;
    expect("the stream is empty", stream.query()?)?;
    expect("the copy came back", host.word(16)?.load(Ordering::Relaxed) == PATTERN)?;
    expect("after the fill", host.word(24)?.load(Ordering::Relaxed) == 0x5a5a_5a5a_5a5a_5a5a)
}

fn value_writes(gpu: &Gpu) -> Outcome {
    let (host, device, stream) = (gpu.allocate_pinned(8)?, gpu.allocate(16)?, gpu.stream()?);
    // SAFETY: both words are in buffers that outlive the work, which is waited for.
    unsafe {
        stream.write_u64(device.ptr().add(8), PATTERN)?;
        stream.write_u64(host.ptr(), !PATTERN)?;
    }
    stream.synchronize_timeout(SECONDS)?;
    let mut word = [0; 8];
    device.read(8, &mut word)?;
    expect("in device memory", u64::from_ne_bytes(word) == PATTERN)?;
    expect("in pinned memory", host.word(0)?.load(Ordering::Acquire) == !PATTERN)
}

fn events(gpu: &Gpu) -> Outcome {
    let (buffer, first, second) = (gpu.allocate(64 << 20)?, gpu.stream()?, gpu.stream()?);
    let (start, end) = (gpu.event(true)?, gpu.event(true)?);
    expect("an event never recorded is complete", end.query()?)?;
    first.record(&start)?;
    // SAFETY: inside a buffer that outlives the work, which is waited for.
    unsafe { first.fill(buffer.ptr(), buffer.len(), 3)? };
    first.record(&end)?;
    second.wait_event(&end)?;
    second.synchronize_timeout(SECONDS)?;
    expect("the other stream waited", end.query()?)?;
    end.synchronize_timeout(SECONDS)?;
    let elapsed = end.elapsed_ms(&start)?;
    println!("    64 MiB filled in {elapsed:.3} ms");
    expect("time goes forwards", elapsed >= 0.0)
}

fn kernel(gpu: &Gpu) -> Outcome {
    let (module, stream, buffer) = (load(gpu, 3)?, gpu.stream()?, gpu.allocate(4 * 1000)?);
    expect("the variable has 4 bytes", module.symbol("step")?.1 == 4)?;
    add(&module, &stream, buffer.ptr(), 1000, 0)?;
    add(&module, &stream, buffer.ptr(), 1000, 64 << 10)?;
    stream.synchronize_timeout(SECONDS)?;
    all_words(&buffer, 6)
}

fn module_errors(gpu: &Gpu) -> Outcome {
    let module = load(gpu, 1)?;
    let error = module.kernel("nothing").err().ok_or("a kernel that is not there was found")?;
    expect("the message offers the kernel", error.to_string().contains("add_step"))?;
    let error = module.symbol("nothing").err().ok_or("a variable that is not there was found")?;
    expect("the message offers the variable", error.to_string().contains("step"))?;
    if gpu.platform() == Platform::Cuda {
        let broken = SOURCE.with_ptx(&[(80, ".version 7.0\n.target sm_80\n.nonsense\n")]);
        let error = Module::load(gpu, &broken).err().ok_or("nonsense was loaded")?;
        println!("    {}", error.to_string().replace('\n', "\n    "));
        expect("it is a compile error", matches!(error, Error::Compile { .. }))?;
    }
    Ok(())
}

fn graph(gpu: &Gpu) -> Outcome {
    let (module, stream, buffer) = (load(gpu, 5)?, gpu.stream()?, gpu.allocate(4 * 256)?);
    let done = gpu.allocate_pinned(8)?;
    stream.begin_capture()?;
    add(&module, &stream, buffer.ptr(), 256, 0)?;
    // SAFETY: pinned memory that outlives the work, which is waited for.
    unsafe { stream.write_u64(done.ptr(), PATTERN)? };
    let graph = stream.end_capture()?;
    all_words(&buffer, 0)?;
    for _ in 0..3 {
        // SAFETY: what was captured is still there.
        unsafe { graph.launch(&stream)? };
    }
    stream.synchronize_timeout(SECONDS)?;
    expect("the value was written", done.word(0)?.load(Ordering::Acquire) == PATTERN)?;
    all_words(&buffer, 15)
}

fn inside_a_capture(gpu: &Gpu) -> Outcome {
    let (module, stream, captured) = (load(gpu, 2)?, gpu.stream()?, gpu.allocate(4 * 32)?);
    stream.begin_capture()?;
    add(&module, &stream, captured.ptr(), 32, 0)?;
    buffers(gpu)?;
    pinned(gpu)?;
    events(gpu)?;
    kernel(gpu)?;
    export_to_self(gpu)?;
    let graph = stream.end_capture()?;
    // SAFETY: what was captured is still there.
    unsafe { graph.launch(&stream)? };
    stream.synchronize_timeout(SECONDS)?;
    all_words(&captured, 2)
}

fn other_streams(gpu: &Gpu) -> Outcome {
    let (module, buffer, owned) = (load(gpu, 1)?, gpu.allocate(4 * 64)?, gpu.stream()?);
    let default = gpu.default_stream()?;
    add(&module, &default, buffer.ptr(), 64, 0)?;
    default.synchronize_timeout(SECONDS)?;
    if gpu.platform() == Platform::Sim {
        return all_words(&buffer, 1);
    }
    // SAFETY: `owned` outlives the wrapper.
    let wrapped = unsafe { Stream::from_raw(gpu, owned.raw())? };
    add(&module, &wrapped, buffer.ptr(), 64, 0)?;
    drop(wrapped);
    owned.synchronize_timeout(SECONDS)?;
    expect("a default stream cannot be captured", default.begin_capture().is_err())?;
    all_words(&buffer, 2)
}

fn identity(gpu: &Gpu) -> Outcome {
    gpu.make_current()?;
    let buffer = gpu.allocate(100)?;
    let owner = gpu.platform().owner_of(buffer.ptr().add(99))?.ok_or("the memory has no owner")?;
    expect("the owner is the device", owner.id() == gpu.id())?;
    for other in gpu.platform().gpus()? {
        other.allocate(1)?.fill(0, 1, 1)?;
    }
    if gpu.platform() == Platform::Cuda {
        expect(
            "work on other devices leaves the current one",
            gpu.platform().current_gpu()?.id() == gpu.id(),
        )?;
        let on_host = gpu.allocate_pinned(8)?;
        expect("pinned memory has no owner", gpu.platform().owner_of(on_host.ptr())?.is_none())?;
        let local = 0u64;
        expect("nor has a stack", gpu.platform().owner_of(DevicePtr::from_ptr(&raw const local))?.is_none())?;
        // SAFETY: the range is live; that it cannot be exported is what is tried.
        let error = unsafe { gpu.export(on_host.ptr(), 8) }.err().ok_or("pinned memory was exported")?;
        expect("pinned memory cannot be exported", matches!(error, Error::NotExportable { .. }))?;
    }
    Ok(())
}
