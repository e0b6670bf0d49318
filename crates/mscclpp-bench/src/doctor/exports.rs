//! The ways to share a device's memory with other processes. Each is tried by exporting the memory and mapping it again.

use mscclpp::{
    DeviceBuffer, Gpu, Platform,
    memory::{ExportHandle, MemoryExport},
};
use serde_json::json;

use super::{
    child::Teller,
    finding::{Failure, Section::Exports as SECTION},
};

const FILE: &str = "file descriptor";
const FABRIC: &str = "fabric handle";
const LEGACY: &str = "legacy handle";

const BYTES: u64 = 64 << 10;
const PATTERN: [u8; 8] = *b"mscclpp?";

pub(super) fn examine(teller: &Teller, gpu: &Gpu) {
    let (id, offers) = (gpu.id(), gpu.properties().export_kinds);
    let tell = |kind: &str, result: Result<(), Failure>, is_needed: bool| {
        let (item, result) = (format!("{kind} of {id}"), result.map(|()| "works".to_owned()));
        let finding = SECTION.tried(item, result, is_needed, (kind, id));
        teller.found(finding.facts(json!({"kind": kind, "device": id})));
    };
    // Connections use legacy handles where there are no descriptors.
    let needs_files = !offers.ipc_handle;
    match export(gpu) {
        Ok((buffer, export)) => {
            tell(FILE, by_file(gpu, &buffer, &export), needs_files);
            tell(FABRIC, by_fabric(gpu, &buffer, &export), false);
        }
        Err(error) => {
            let reason = format!("no memory of the device can be shared: {error}");
            tell(FILE, Err(Failure::new(reason, "free memory of the device, or see dmesg")), true);
        }
    }
    // Memory with legacy handles comes from other libraries, and only other processes can open it.
    if offers.ipc_handle {
        let text = "the driver offers it; not tried";
        let finding = SECTION.note(format!("{LEGACY} of {id}"), text).at(LEGACY, id, "(ok)");
        return teller.found(finding.facts(json!({"kind": LEGACY, "device": id})));
    }
    let failure = match gpu.platform() {
        Platform::Sim => not_simulated(),
        _ => Failure::new(
            "the driver does not offer it",
            "share memory of Gpu::allocate, which has descriptors",
        ),
    };
    tell(LEGACY, Err(failure), false);
}

fn not_simulated() -> Failure {
    Failure::new("simulated devices have none", "none is needed: they share memory by descriptors")
}

fn export(gpu: &Gpu) -> mscclpp_gpu::Result<(DeviceBuffer, MemoryExport)> {
    let buffer = gpu.allocate(BYTES)?;
    // SAFETY: the range is the whole of a live buffer.
    let export = unsafe { gpu.export(buffer.ptr(), buffer.len()) }?;
    Ok((buffer, export))
}

fn by_file(gpu: &Gpu, buffer: &DeviceBuffer, export: &MemoryExport) -> Result<(), Failure> {
    if matches!(export.handle, ExportHandle::FileDescriptor(_)) {
        return map_again(gpu, buffer, &export.handle, export);
    }
    let remedy = "take a newer driver; until then connections use legacy handles";
    Err(Failure::new("the driver has no virtual memory management on this device", remedy))
}

fn by_fabric(gpu: &Gpu, buffer: &DeviceBuffer, export: &MemoryExport) -> Result<(), Failure> {
    match export.fabric {
        Some(fabric) => map_again(gpu, buffer, &ExportHandle::Fabric(fabric), export),
        None if gpu.platform() == Platform::Sim => Err(not_simulated()),
        None => Err(Failure::new(
            "the device is in no NVLink domain, or its IMEX channel is not set up",
            "none is needed within a node; across nodes of one NVLink domain, start nvidia-imex and make \
             /dev/nvidia-caps-imex-channels/channel0",
        )),
    }
}

/// Maps the exported memory a second time, and reads through this mapping what was written through the first.
fn map_again(
    gpu: &Gpu,
    buffer: &DeviceBuffer,
    handle: &ExportHandle,
    export: &MemoryExport,
) -> Result<(), Failure> {
    let read = || -> mscclpp_gpu::Result<[u8; 8]> {
        buffer.write(BYTES - 8, &PATTERN)?;
        let mapped = gpu.import(handle, export.allocation_size)?;
        let (copy, stream) = (gpu.allocate(8)?, gpu.stream()?);
        // SAFETY: the ranges are inside the mapping, which is of the whole allocation, and inside `copy`. Both outlive the
        // copy, because this waits for it.
        unsafe { stream.copy(copy.ptr(), mapped.ptr().add(export.offset + BYTES - 8), 8)? };
        // If this never returns, the process that started this one ends it.
        stream.synchronize()?;
        let mut read = [0; 8];
        copy.read(0, &mut read)?;
        Ok(read)
    };
    let remedy = "see dmesg; connections of CudaIpc need it";
    match read() {
        Ok(PATTERN) => Ok(()),
        Ok(other) => {
            Err(Failure::new(format!("it was mapped, and holds {other:?} instead of {PATTERN:?}"), remedy))
        }
        Err(error) => Err(Failure::new(error, remedy)),
    }
}
