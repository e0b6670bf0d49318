//! Keeps host threads near a device, on its NUMA node.
//!
//! ```
//! # use mscclpp_gpu::{Platform, numa};
//! #
//! let gpu = Platform::Sim.gpu(0)?;
//! // On a simulated device, and on many virtual machines, the node is not known, and the thread stays where it is.
//! let is_bound = numa::bind_thread(gpu.numa_node())?;
//! assert!(!is_bound);
//! # Ok::<(), mscclpp_gpu::Error>(())
//! ```

use std::path::{Path, PathBuf};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::{Error, Result};

/// The folder in which the system describes its nodes.
const NODES: &str = "/sys/devices/system/node";

/// Binds the calling thread to those processors of a NUMA node that it may use now. `false` if the node is not known:
/// `None`, as [`Gpu::numa_node`](crate::Gpu::numa_node) may return. The thread then stays where it is.
///
/// Threads that it starts from now on are bound too. Memory that they touch first comes from the node, as long as the
/// node has free memory; no memory policy is set. Does not block.
///
/// # Errors
/// [`Error::InvalidArgument`] if this machine does not have the node, or if the thread may use none of its processors;
/// [`Error::System`] if the system refuses. In either case the thread stays where it is.
pub fn bind_thread(node: Option<u32>) -> Result<bool> {
    let Some(node) = node else { return Ok(false) };
    bind(Path::new(NODES), node)?;
    Ok(true)
}

/// Binds the calling thread. `nodes` is the folder that describes the nodes.
fn bind(nodes: &Path, node: u32) -> Result<()> {
    let path = nodes.join(format!("node{node}/cpulist"));
    let list = std::fs::read_to_string(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => no_such_node(nodes, node, &path),
        _ => Error::system(format!("reading {}", path.display()), error),
    })?;
    let near = parse(&list).ok_or_else(|| {
        Error::invalid(format!("{} holds {list:?}, which is no list of processors", path.display()))
    })?;
    let allowed = sched_getaffinity(None)
        .map_err(|error| Error::system("asking for the processors of this thread", error))?;
    let mut both = CpuSet::new();
    near.into_iter().filter(|cpu| allowed.is_set(*cpu)).for_each(|cpu| both.set(cpu));
    if both.count() == 0 {
        return Err(Error::invalid(format!(
            "this thread may use none of the processors of NUMA node {node} ({}); it was bound to others, or its \
             container was",
            list.trim()
        )));
    }
    sched_setaffinity(None, &both)
        .map_err(|error| Error::system(format!("binding this thread to NUMA node {node}"), error))
}

fn no_such_node(nodes: &Path, node: u32, path: &Path) -> Error {
    let online: PathBuf = nodes.join("online");
    let known =
        std::fs::read_to_string(online).map_or("none known".to_owned(), |list| list.trim().to_owned());
    Error::invalid(format!(
        "there is no NUMA node {node} on this machine (nodes: {known}; {} does not exist)",
        path.display()
    ))
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

#[cfg(any(feature = "cuda", feature = "hip"))]
/// Returns the node of a device as the system knows it; -1 and a missing file both mean that it does not.
pub(crate) fn node_of_pci_device(pci_bus_id: &str) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/sys/bus/pci/devices/{pci_bus_id}/numa_node")).ok()?;
    node_of(&text)
}

#[cfg(any(feature = "cuda", feature = "hip"))]
fn node_of(text: &str) -> Option<u32> {
    text.trim().parse().ok()
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

    fn mine() -> Vec<usize> {
        let set = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
    }

    /// Makes a folder that describes these nodes, as text files.
    fn machine(nodes: &[(u32, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (node, list) in nodes {
            let node = folder.path().join(format!("node{node}"));
            std::fs::create_dir(&node).unwrap();
            std::fs::write(node.join("cpulist"), list).unwrap();
        }
        folder
    }

    /// Tests run on threads of their own, so that each binds itself alone.
    #[test]
    fn a_thread_is_bound_to_what_it_may_use_of_a_node() {
        let before = mine();
        let last = *before.last().unwrap();
        let machine = machine(&[(3, &format!("{last},{}\n", CpuSet::MAX_CPU - 1))]);
        bind(machine.path(), 3).unwrap();
        assert_eq!(mine(), [last]);
    }

    #[test]
    fn an_unknown_node_is_no_error_and_a_wrong_one_changes_nothing() {
        let before = mine();
        assert!(!bind_thread(None).unwrap());
        let error = bind_thread(Some(u32::MAX)).unwrap_err().to_string();
        assert!(error.contains("no NUMA node 4294967295"), "{error}");
        let nobodys = (0..CpuSet::MAX_CPU).find(|cpu| !before.contains(cpu)).unwrap();
        let machine = machine(&[(0, &nobodys.to_string()), (1, ""), (2, "what")]);
        for (node, said) in [(0, "may use none"), (1, "may use none"), (2, "no list"), (3, "no NUMA node 3")]
        {
            let error = bind(machine.path(), node).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        assert_eq!(mine(), before);
    }

    #[cfg(any(feature = "cuda", feature = "hip"))]
    #[test]
    fn a_device_the_system_does_not_know_has_no_numa_node() {
        assert_eq!(node_of_pci_device("ffff:ff:1f.7"), None);
        assert_eq!(["-1\n", "", "0\n", "13\n"].map(node_of), [None, None, Some(0), Some(13)]);
    }
}
