//! How adapters access the memory of a GPU directly: what its driver reports, and whether it exports a dmabuf. The loopback
//! tests whether an adapter accepts that dmabuf.

use mscclpp::{Gpu, Platform, gpu::WritesOrdering};
use serde_json::json;

use super::{
    child::Teller,
    finding::{Failure, Section::GpuDirect as SECTION},
};

const BYTES: u64 = 64 << 10;
const NO_RDMA: &str = "the driver says that the device has no GPUDirect RDMA";
const NO_FLUSH: &str = "the driver says that the host cannot flush what adapters write";

/// Examines a GPU. There are no findings for simulated devices.
pub(super) fn examine(teller: &Teller, gpu: &Gpu) {
    if gpu.platform() == Platform::Sim {
        return;
    }
    let id = gpu.id();
    let direct = match gpu.gpu_direct() {
        Ok(direct) => direct,
        Err(error) => {
            let remedy = "look for the device in nvidia-smi and dmesg";
            return teller.found(SECTION.problem(format!("device {id}"), error, remedy));
        }
    };
    for (way, result) in [
        ("rdma", as_said(direct.rdma, NO_RDMA, "use Ethernet, or send from host memory")),
        ("dmabuf", dma_buf(gpu)),
        (
            "host flush",
            as_said(direct.host_flush, NO_FLUSH, "none is needed where both adapters have atomics"),
        ),
    ] {
        let (item, result) = (format!("{way} of {id}"), result.map(|()| "works".to_owned()));
        let finding = SECTION.tried(item, result, false, (way, id));
        teller.found(finding.facts(json!({"way": way, "device": id})));
    }
    let ordering = match direct.writes_ordering {
        WritesOrdering::None => "none",
        WritesOrdering::Owner => "owner",
        WritesOrdering::AllDevices => "all",
    };
    let text = format!("writes of adapters are seen in order by: {ordering}");
    let finding = SECTION.note(format!("ordering of {id}"), text).at("ordering", id, ordering);
    teller.found(finding.facts(json!({"way": "ordering", "device": id, "ordering": ordering})));
}

fn as_said(works: bool, reason: &str, remedy: &'static str) -> Result<(), Failure> {
    if works { Ok(()) } else { Err(Failure::new(reason, remedy)) }
}

fn dma_buf(gpu: &Gpu) -> Result<(), Failure> {
    let remedy = "take the open kernel modules of the driver (nvidia-open) and Linux 5.12 or newer, or load the module \
                  nvidia_peermem";
    let buffer = gpu.allocate(BYTES).map_err(|error| Failure::new(error, "free memory of the device"))?;
    // SAFETY: the range is the whole of a live buffer.
    let made = unsafe { gpu.export_dma_buf(buffer.ptr(), buffer.len()) };
    made.map(drop).map_err(|error| Failure::new(error, remedy))
}
