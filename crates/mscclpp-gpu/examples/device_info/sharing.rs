//! Memory shared between mappings, processes and devices.

use std::{
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    process::Command,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use mscclpp_gpu::{DevicePtr, ExportHandle, Gpu, Platform};

use crate::{
    Outcome, PATTERN, SECONDS, expect,
    kernel::{add, all_words, load},
};

pub(crate) fn export_to_self(gpu: &Gpu) -> Outcome {
    let buffer = gpu.allocate(3 << 20)?;
    buffer.write(2 << 20, &PATTERN.to_ne_bytes())?;
    // SAFETY: inside a live buffer.
    let export = unsafe { gpu.export(buffer.ptr().add(2 << 20), 8)? };
    expect("the offset is that in the allocation", export.offset == 2 << 20)?;
    expect("the allocation holds the buffer", export.allocation_size >= buffer.len())?;
    if matches!(export.handle, ExportHandle::IpcHandle(_)) {
        return Ok(());
    }
    let imported = gpu.import(&export.handle, export.allocation_size)?;
    check_and_reply(gpu, imported.ptr().add(export.offset))?;
    drop(imported);
    let mut reply = [0; 8];
    buffer.read(2 << 20, &mut reply)?;
    expect("the other mapping is the same memory", u64::from_ne_bytes(reply) == !PATTERN)?;
    if let Some(fabric) = export.fabric {
        gpu.import(&ExportHandle::Fabric(fabric), export.allocation_size)?;
    }
    Ok(())
}

/// Does the work of an importer: finds the pattern, and writes its complement.
fn check_and_reply(gpu: &Gpu, at: DevicePtr) -> Outcome {
    let (host, stream) = (gpu.allocate_pinned(8)?, gpu.stream()?);
    // SAFETY: the callers keep the mapping until this has waited.
    unsafe {
        stream.copy(host.ptr(), at, 8)?;
        stream.write_u64(at, !PATTERN)?;
    }
    stream.synchronize_timeout(SECONDS)?;
    let found = host.word(0)?.load(Ordering::Acquire);
    if found == PATTERN { Ok(()) } else { Err(format!("found {found:#x} in the imported memory").into()) }
}

/// Exports memory of `owner`, which another process imports on `importer`.
pub(crate) fn export_to_process(importer: &Gpu, owner: &Gpu) -> Outcome {
    let buffer = owner.allocate(3 << 20)?;
    buffer.write(4096, &PATTERN.to_ne_bytes())?;
    // SAFETY: inside a live buffer.
    let export = unsafe { owner.export(buffer.ptr().add(4096), 8)? };
    // A duplicate made by `dup` is inherited by child processes.
    let mut inherited = None;
    let (kind, handle) = match &export.handle {
        ExportHandle::FileDescriptor(fd) => {
            let fd = inherited.insert(rustix::io::dup(fd)?);
            ("fd", fd.as_raw_fd().to_string())
        }
        ExportHandle::IpcHandle(bytes) => ("ipc", hex(bytes)),
        ExportHandle::Fabric(bytes) => ("fabric", hex(bytes)),
    };
    let mut child = Command::new(std::env::current_exe()?)
        .env("MSCCLPP_PLATFORM", importer.platform().to_string())
        .args(["import", &importer.id().to_string(), kind, &handle])
        .args([export.allocation_size.to_string(), export.offset.to_string()])
        .spawn()?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() > 3 * SECONDS {
            child.kill()?;
            child.wait()?;
            return Err("the importing process did not end".into());
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    expect("the importing process succeeded", status.success())?;
    let mut reply = [0; 8];
    buffer.read(4096, &mut reply)?;
    expect("its reply is in our memory", u64::from_ne_bytes(reply) == !PATTERN)
}

pub(crate) fn import(device: &str, kind: &str, handle: &str, size: &str, offset: &str) -> Outcome {
    let gpu = Platform::detect_or_sim()?.gpu(device.parse()?)?;
    let handle = match kind {
        // SAFETY: the parent process left this descriptor open for us alone.
        "fd" => ExportHandle::FileDescriptor(unsafe { OwnedFd::from_raw_fd(handle.parse()?) }),
        "ipc" => ExportHandle::IpcHandle(bytes(handle)?),
        _ => ExportHandle::Fabric(bytes(handle)?),
    };
    let imported = gpu.import(&handle, size.parse()?)?;
    check_and_reply(&gpu, imported.ptr().add(offset.parse()?))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Result<[u8; 64], Box<dyn std::error::Error>> {
    let bytes: Result<Vec<u8>, _> =
        (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16)).collect();
    bytes?.try_into().map_err(|_| "a handle has 64 bytes".into())
}

/// Tests that `a` reaches the memory of `b`: copies, value writes, kernels.
pub(crate) fn peer(a: &Gpu, b: &Gpu) -> Outcome {
    let (there, here) = (b.allocate(4 * 512)?, a.allocate(4 * 512)?);
    let (module, stream) = (load(a, 9)?, a.stream()?);
    // SAFETY: one live allocation of `b`.
    unsafe {
        a.enable_access(b, there.ptr(), there.len())?;
        a.enable_access(b, there.ptr(), there.len())?;
    }
    add(&module, &stream, there.ptr(), 512, 0)?;
    // SAFETY: inside buffers that outlive the work, which is waited for.
    unsafe { stream.copy(here.ptr(), there.ptr(), there.len())? };
    stream.synchronize_timeout(SECONDS)?;
    all_words(&there, 9)?;
    all_words(&here, 9)?;
    // SAFETY: the same as above.
    unsafe { stream.write_u64(there.ptr(), PATTERN)? };
    stream.synchronize_timeout(SECONDS)?;
    let mut word = [0; 8];
    there.read(0, &mut word)?;
    expect("a value written to the peer", u64::from_ne_bytes(word) == PATTERN)
}
