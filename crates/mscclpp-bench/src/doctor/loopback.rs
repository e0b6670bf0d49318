//! Tests whether each adapter carries data from and to each device, through the transport itself, within this process.

use std::time::{Duration, Instant};

use mscclpp::{Context, Device, EndpointConfig, Gpu, Platform, Report, Transport};
use mscclpp_ib::InfiniBand;
use serde_json::json;

use super::{
    child::Teller,
    devices,
    finding::{Failure, Section::Loopback as SECTION},
    peers::{ALL_PAIRS, not_tried},
};

const BYTES: usize = 64 << 10;
/// The longest time that the put may take.
const PATIENCE: Duration = Duration::from_secs(10);

const NOT_OPENED: &str = "see the section RDMA devices: its port, its GIDs, and the limit of locked memory";
const NOT_REGISTERED: &str = "raise the limit of locked memory (ulimit -l)";
const GPU_NOT_REGISTERED: &str = "see GPUDirect above: a dmabuf needs libibverbs of rdma-core 34, Linux 5.12 and an adapter that \
     takes it, else load the module nvidia_peermem; and raise the limit of locked memory (ulimit -l)";
const NOT_CONNECTED: &str = "see which interfaces and GIDs are chosen; on RoCE, a firewall or a VLAN without an address \
     stops packets even to this node; MSCCLPP_IB_GID_INDEX names another GID";
const WRONG: &str = "do not use this pair; see dmesg for errors of PCIe or the IOMMU";

pub(super) fn examine(teller: &Teller) {
    teller.trying("looking for RDMA devices");
    let infiniband = InfiniBand::new();
    let Ok(names) = infiniband.device_names() else {
        return teller.found(SECTION.note("none", "no RDMA device is chosen; see above"));
    };
    let gpus = devices::open(teller, |_, _| {});
    let Some(first) = gpus.first() else {
        return teller.found(SECTION.note("none", devices::NO_DEVICES));
    };
    let context = Context::builder().provider(infiniband).platform(first.platform()).build();
    let start = Instant::now();
    for (number, name) in names.iter().enumerate() {
        let Ok(transport) = format!("IB{number}").parse::<Transport>() else { continue };
        for gpu in &gpus {
            let (row, column) = (format!("{transport} ({name})"), gpu.id());
            if start.elapsed() > ALL_PAIRS {
                teller.found(not_tried(SECTION, row, column));
                continue;
            }
            teller.trying(format!("putting through {name} from and to {gpu}"));
            let item = format!("{transport} with {column}");
            let result = put(&context, transport, gpu)
                .map(|took| format!("data is right, after {} us", took.as_micros()));
            let mut facts = json!({"transport": transport.to_string(), "device": name, "gpu": column});
            if result.is_ok() {
                facts["bytes"] = BYTES.into();
            }
            teller.found(SECTION.tried(item, result, true, (&row, column)).facts(facts));
        }
    }
}

/// Puts once and flushes, over a connection of the process to itself, and compares the data.
fn put(context: &Context, transport: Transport, gpu: &Gpu) -> Result<Duration, Failure> {
    let failed = |remedy| move |error: mscclpp::errors::CoreError| Failure::new(Report(&error), remedy);
    let of_device = |error: mscclpp_gpu::Error| Failure::new(error, "see the sections about devices");
    let (source, target) = (gpu.allocate(BYTES as u64).map_err(of_device)?, gpu.allocate(BYTES as u64));
    let target = target.map_err(of_device)?;
    let data: Vec<u8> = (0..BYTES).map(|_| fastrand::u8(..)).collect();
    source.write(0, &data).map_err(of_device)?;

    let endpoint = context.create_endpoint(EndpointConfig::new(transport, Device::gpu(gpu.id())));
    let endpoint = endpoint.map_err(failed(NOT_OPENED))?;
    let not_registered = if gpu.platform() == Platform::Sim { NOT_REGISTERED } else { GPU_NOT_REGISTERED };
    let register = |buffer| context.register_buffer(buffer, transport).map_err(failed(not_registered));
    let (from, to) = (register(&source)?, register(&target)?);
    let connection = context.connect(&endpoint, &endpoint).map_err(failed(NOT_CONNECTED))?;
    let start = Instant::now();
    connection.write(&to, 0, &from, 0, BYTES as u64).map_err(failed(NOT_CONNECTED))?;
    connection.flush(PATIENCE).map_err(failed(NOT_CONNECTED))?;
    let took = start.elapsed();

    if gpu.gpu_direct().map_err(of_device)?.host_flush {
        gpu.flush_gpu_direct_writes(true).map_err(of_device)?;
    }
    let mut came = vec![0; BYTES];
    target.read(0, &mut came).map_err(of_device)?;
    match came.iter().zip(&data).position(|(came, sent)| came != sent) {
        None => Ok(took),
        Some(at) => {
            let reason = format!("byte {at} of {BYTES} came as {}, not {}", came[at], data[at]);
            Err(Failure::new(reason, WRONG))
        }
    }
}
