//! The properties of each device. `exports` and `gpu_direct` examine how its memory is shared and accessed.

use mscclpp::{Gpu, Platform};
use mscclpp_gpu::Error;
use serde_json::json;

use super::{
    child::Teller,
    exports,
    finding::{
        Finding,
        Section::{Devices, GpuDirect},
    },
    gpu_direct,
};

/// The most devices that are examined: the tables of more could not be read.
const MOST: usize = 16;
pub(super) const NO_DEVICES: &str = "no device can be used; see Platforms";

/// Opens the first devices of the platform in use, and calls `failed` for those that cannot be opened.
pub(super) fn open(teller: &Teller, mut failed: impl FnMut(usize, &Error)) -> Vec<Gpu> {
    teller.trying("looking for devices");
    let Ok(platform) = Platform::detect_or_sim() else { return Vec::new() };
    let count = platform.device_count().unwrap_or(0);
    let open = |id| {
        teller.trying(format!("opening {platform} device {id}"));
        platform.gpu(id).map_err(|error| failed(id, &error)).ok()
    };
    (0..count.min(MOST)).filter_map(open).collect()
}

pub(super) fn examine(teller: &Teller) {
    let gpus = open(teller, |id, error| {
        let remedy = "look at nvidia-smi: another process may use the device alone, or the device has failed";
        teller.found(Devices.problem(format!("device {id}"), error, remedy));
    });
    if gpus.is_empty() {
        teller.found(Devices.note("none", NO_DEVICES));
    }
    let count = Platform::detect_or_sim().and_then(Platform::device_count).unwrap_or(0);
    if count > MOST {
        let text = format!("{count} devices; the first {MOST} are looked at");
        teller.found(Devices.note("more", text).facts(json!({"devices": count})));
    }
    for gpu in &gpus {
        teller.trying(format!("asking {gpu} for its memory"));
        teller.found(describe(gpu));
        teller.trying(format!("exporting memory of {gpu}"));
        exports::examine(teller, gpu);
        teller.trying(format!("asking {gpu} how adapters reach its memory"));
        gpu_direct::examine(teller, gpu);
    }
    if gpus.first().is_some_and(|gpu| gpu.platform() == Platform::Sim) {
        let text = "adapters reach memory of simulated devices as host memory";
        teller.found(GpuDirect.note("host", text));
    }
}

fn describe(gpu: &Gpu) -> Finding {
    let p = gpu.properties();
    let item = format!("{} {}", p.platform, p.id);
    let memory = match gpu.memory_info() {
        Ok(memory) => memory,
        Err(error) => {
            let remedy = "look for the device in nvidia-smi and dmesg";
            return Devices.problem(item, error, remedy);
        }
    };
    let mut text = match p.platform {
        Platform::Sim => format!("simulated, {} processors", p.multiprocessors),
        _ => p.name.clone(),
    };
    let mebi = |bytes: u64| bytes >> 20;
    text += &format!(", {} MiB of {} free", mebi(memory.free), mebi(memory.total));
    if let Some((major, minor)) = p.compute_capability {
        text += &format!(", compute capability {major}.{minor}");
    }
    if let Some(address) = &p.pci_bus_id {
        text += &format!(", PCI {address}");
        text += &p.numa_node.map_or(", NUMA node not known".to_owned(), |node| format!(", NUMA node {node}"));
    }
    Devices.ok(item, text).facts(json!({
        "id": p.id,
        "platform": p.platform.to_string(),
        "name": p.name,
        "uuid": p.uuid.map(|byte| format!("{byte:02x}")).concat(),
        "pci": p.pci_bus_id,
        "numa_node": p.numa_node,
        "memory_bytes": memory.total,
        "free_bytes": memory.free,
        "compute_capability": p.compute_capability.map(|(major, minor)| format!("{major}.{minor}")),
        "multiprocessors": p.multiprocessors,
    }))
}
