//! Peer access between devices: which device reaches the memory of which other, and how fast copies between them are.

use std::time::{Duration, Instant};

use mscclpp::{DeviceBuffer, Gpu, Platform, Stream};
use serde_json::json;

use super::{child::Teller, devices, finding::Finding, finding::Section, finding::Section::Peers as SECTION};

/// The longest time for all pairs together; pairs after that are not tried.
pub(super) const ALL_PAIRS: Duration = Duration::from_secs(20);
/// The bytes of one copy, and the number of copies.
const BYTES_OF_GPU: u64 = 64 << 20;
const BYTES_OF_HOST: u64 = 1 << 20;
const COPIES: u32 = 4;
/// The number of bytes that are compared at either end of a copy.
const COMPARED: usize = 4096;

/// A device with the memory and stream that a copy needs.
struct Side<'a> {
    gpu: &'a Gpu,
    source: DeviceBuffer,
    target: DeviceBuffer,
    stream: Stream,
}

pub(super) fn examine(teller: &Teller) {
    let gpus = devices::open(teller, |_, _| {});
    if gpus.len() < 2 {
        return teller.found(SECTION.note("none", "there are no two devices"));
    }
    let mut sides = Vec::new();
    for gpu in &gpus {
        teller.trying(format!("allocating memory of {gpu}"));
        match side(gpu) {
            Ok(side) => sides.push(side),
            Err(error) => {
                let remedy = "free memory of the device";
                teller.found(SECTION.problem(format!("device {}", gpu.id()), error, remedy));
            }
        }
    }
    let start = Instant::now();
    for from in &sides {
        for to in sides.iter().filter(|to| to.gpu.id() != from.gpu.id()) {
            if start.elapsed() > ALL_PAIRS {
                teller.found(not_tried(SECTION, from.gpu.id().to_string(), to.gpu.id()));
                continue;
            }
            teller.trying(format!("copying from {} to {}", from.gpu, to.gpu));
            teller.found(pair(from, to).facts(json!({"from": from.gpu.id(), "to": to.gpu.id()})));
        }
    }
}

/// The finding for a pair for which no time was left.
pub(super) fn not_tried(section: Section, row: String, column: usize) -> Finding {
    let reason = format!("not tried, because the pairs before it took {ALL_PAIRS:?}");
    let remedy = "choose fewer devices by CUDA_VISIBLE_DEVICES, MSCCLPP_SIM_DEVICES and MSCCLPP_HCA_DEVICES";
    section.unavailable(format!("{row} to {column}"), reason, remedy).at(row, column, "?")
}

fn side(gpu: &Gpu) -> mscclpp_gpu::Result<Side<'_>> {
    let bytes = if gpu.platform() == Platform::Sim { BYTES_OF_HOST } else { BYTES_OF_GPU };
    let (source, target) = (gpu.allocate(bytes)?, gpu.allocate(bytes)?);
    let pattern = pattern(gpu.id());
    source.write(0, &pattern)?;
    source.write(bytes - COMPARED as u64, &pattern)?;
    Ok(Side { gpu, source, target, stream: gpu.stream()? })
}

/// The bytes at the ends of a device's source, which differ between devices.
fn pattern(id: usize) -> Vec<u8> {
    (0..COMPARED).map(|i| (i * 7 + id * 31 + i / 251) as u8).collect()
}

fn pair(from: &Side<'_>, to: &Side<'_>) -> Finding {
    let (row, column) = (from.gpu.id().to_string(), to.gpu.id());
    let item = format!("{row} to {column}");
    let access = match from.gpu.peer_access(to.gpu) {
        Ok(access) if !access.reachable => {
            let reason = from.gpu.platform().why_no_peer_access();
            let remedy = "see `nvidia-smi topo -p2p r`; connect such pairs by InfiniBand or Ethernet";
            let finding = SECTION.unavailable(item, reason, remedy).at(row, column, "--");
            return finding.facts(json!({"reachable": false}));
        }
        access => access.map_err(|error| error.to_string()),
    };
    match access.and_then(|access| Ok((access.native_atomics, copies(from, to)?))) {
        Ok((native_atomics, gb_per_s)) => {
            let digits = usize::from(gb_per_s < 100.0);
            let (mark, atomics) = if native_atomics { ("", "with atomics") } else { ("~", "no atomics") };
            let finding = SECTION.ok(item, format!("{gb_per_s:.digits$} GB/s, {atomics}"));
            finding
                .at(row, column, format!("{gb_per_s:.digits$}{mark}"))
                .facts(json!({"reachable": true, "native_atomics": native_atomics, "gb_per_s": gb_per_s}))
        }
        Err(reason) => {
            let remedy =
                "do not use this pair; see dmesg for errors of NVLink, PCIe or the IOMMU, and switch off ACS";
            let finding = SECTION.problem(item, reason, remedy).at(row, column, "!!");
            finding.facts(json!({"reachable": true}))
        }
    }
}

/// Copies into the peer's memory, and compares the data. Returns the speed in GB/s, without the first copy.
fn copies(from: &Side<'_>, to: &Side<'_>) -> Result<f64, String> {
    let bytes = from.source.len();
    let copy = |times: u32| {
        for _ in 0..times {
            // SAFETY: both buffers have this size, and outlive the copies, because this waits for them.
            unsafe { from.stream.copy(to.target.ptr(), from.source.ptr(), bytes)? };
        }
        // If this never returns, the process that started this one ends it.
        from.stream.synchronize()
    };
    let run = || -> mscclpp_gpu::Result<(f64, bool)> {
        to.target.fill(0, bytes, 0)?;
        // SAFETY: the range is one live allocation of the peer.
        unsafe { from.gpu.enable_access(to.gpu, to.target.ptr(), bytes)? };
        copy(1)?;
        let start = Instant::now();
        copy(COPIES)?;
        let seconds = start.elapsed().as_secs_f64().max(1e-9);
        let mut ends = [vec![0; COMPARED], vec![0; COMPARED]];
        to.target.read(0, &mut ends[0])?;
        to.target.read(bytes - COMPARED as u64, &mut ends[1])?;
        let expected = pattern(from.gpu.id());
        let is_right = ends.iter().all(|end| *end == expected);
        Ok(((u64::from(COPIES) * bytes) as f64 / seconds / 1e9, is_right))
    };
    match run() {
        Ok((gb_per_s, true)) => Ok(gb_per_s),
        Ok((_, false)) => Err("copies arrive with wrong data".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
