//! Keeping a proxy's thread near its device.

use mscclpp_gpu::Gpu;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Binds the calling thread to the processors of the device's NUMA node, as far as it may use them. Where the node is
/// not known or that is refused, it stays where it is.
pub(crate) fn move_near(gpu: &Gpu) {
    if let Err(reason) = try_to_move_near(gpu) {
        tracing::debug!(target: "mscclpp::proxy", %gpu, reason, "the proxy's thread is bound to no NUMA node");
    }
}

fn try_to_move_near(gpu: &Gpu) -> Result<(), String> {
    let node = gpu.properties().numa_node.ok_or("the device's node is not known")?;
    let path = format!("/sys/devices/system/node/node{node}/cpulist");
    let list = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    let near = parse(&list).ok_or_else(|| format!("{path} says {list:?}"))?;
    let allowed = sched_getaffinity(None).map_err(|e| format!("sched_getaffinity: {e}"))?;
    let mut both = CpuSet::new();
    near.into_iter().filter(|cpu| allowed.is_set(*cpu)).for_each(|cpu| both.set(cpu));
    if both.count() == 0 {
        return Err(format!("none of the processors of node {node} may be used by this process"));
    }
    sched_setaffinity(None, &both).map_err(|e| format!("sched_setaffinity: {e}"))?;
    tracing::debug!(target: "mscclpp::proxy", %gpu, node, "the proxy's thread is bound to the device's NUMA node");
    Ok(())
}

/// Processors from a list such as `0-3,8`; those beyond what a [`CpuSet`] holds are left out.
fn parse(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for range in list.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        cpus.extend((first..=last).take_while(|cpu| *cpu < CpuSet::MAX_CPU));
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors() {
        assert_eq!(parse("0-2,8,10-11\n"), Some(vec![0, 1, 2, 8, 10, 11]));
        assert_eq!(parse("\n"), Some(vec![]));
        assert_eq!(parse("0-x"), None);
        assert_eq!(parse("0-18446744073709551615").map(|cpus| cpus.len()), Some(CpuSet::MAX_CPU));
    }
}
