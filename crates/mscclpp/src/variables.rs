//! The environment variables that this library has, to tell a user of one that it has not.

/// The names behind `MSCCLPP_`, as in `docs/src/environment.md` and `docs/src/infiniband.md`.
const KNOWN: [&str; 52] = [
    "ADDRESS",
    "BOOTSTRAP_SECRET",
    "CACHE_DIR",
    "CHECK_CALLS",
    "COMM_ID",
    "CUDAIPC_USE_DEFAULT_STREAM",
    "CXX",
    "DEBUG",
    "DEBUG_FILE",
    "DEBUG_SUBSYS",
    "ETHERNET_CHECKSUMS",
    "GIT_COMMIT",
    "GRAPH_REGISTER",
    "HCA_DEVICES",
    "HOME",
    "HOSTID",
    "IBV_MODE",
    "IBV_SO",
    "IB_GID_INDEX",
    "IB_PKEY_INDEX",
    "IB_RELAXED_ORDERING",
    "IB_RETRY_COUNT",
    "IB_RNR_RETRY",
    "IB_SERVICE_LEVEL",
    "IB_TIMEOUT",
    "IB_TRAFFIC_CLASS",
    "JOB_ID",
    "LOG_FILE",
    "LOG_LEVEL",
    "LOG_SUBSYS",
    "NCCL_CALLS_AT_ONCE",
    "NCCL_DEBUG",
    "NCCL_DUMP",
    "NCCL_FALLBACK",
    "NCCL_NETWORK",
    "NCCL_SAME_GPU",
    "NCCL_SCRATCH",
    "NCCL_TIMEOUT",
    "NCCL_VERSION",
    "NVRTC_SO",
    "N_RANKS",
    "PLATFORM",
    "PROGRAMMATIC_LAUNCHES",
    "RANK",
    "SIM_DEVICES",
    "SIM_PEER_ACCESS",
    "SIM_RACES",
    "SIM_SCHEDULE",
    "SOCKET_FAMILY",
    "SOCKET_IFNAME",
    "TORCH_CALLS_AT_ONCE",
    "TORCH_SIMULATED",
];

/// How many characters a misspelt name may differ in from the one that is meant.
const MISSPELT: usize = 3;

/// Returns the name that `variable` is a misspelling of, with its prefix. Returns `None` if the library has this variable, or no
/// similar one: programs and tests may have variables of their own.
pub(crate) fn meant_by(variable: &str) -> Option<String> {
    let name = variable.strip_prefix("MSCCLPP_")?;
    if KNOWN.contains(&name) {
        return None;
    }
    let (distance, meant) = KNOWN.iter().map(|known| (distance(name, known), known)).min()?;
    // A short name with that many other characters would be another name.
    (distance <= MISSPELT.min(name.len() / 3)).then(|| format!("MSCCLPP_{meant}"))
}

/// Returns how many characters must be added, left out or replaced to make one text of the other.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.bytes().enumerate() {
        let mut before = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.bytes().enumerate() {
            let replaced = before + usize::from(a != b);
            before = row[j + 1];
            row[j + 1] = replaced.min(before + 1).min(row[j] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_is_found_and_others_are_left_alone() {
        assert_eq!(meant_by("MSCCLPP_SOCKET_IFNMAE").as_deref(), Some("MSCCLPP_SOCKET_IFNAME"));
        assert_eq!(meant_by("MSCCLPP_NCCL_TIME_OUT").as_deref(), Some("MSCCLPP_NCCL_TIMEOUT"));
        assert_eq!(meant_by("MSCCLPP_PLATFROM").as_deref(), Some("MSCCLPP_PLATFORM"));
        for other in
            ["MSCCLPP_SOCKET_IFNAME", "MSCCLPP_TEST_SEED", "MSCCLPP_VM_NODES", "MSCCLPP_ROOT", "PATH"]
        {
            assert_eq!(meant_by(other), None, "{other}");
        }
    }

    #[test]
    fn the_known_names_are_those_of_the_book() {
        let book = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/");
        let Ok(pages) = ["environment.md", "infiniband.md"]
            .map(|page| std::fs::read_to_string(format!("{book}{page}")))
            .into_iter()
            .collect::<Result<String, _>>()
        else {
            // A package has no book.
            return;
        };
        let mut named: Vec<&str> = pages
            .split("MSCCLPP_")
            .skip(1)
            .filter_map(|rest| {
                rest.split(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')).next()
            })
            .filter(|name| !name.ends_with('_'))
            .collect();
        named.sort_unstable();
        named.dedup();
        assert_eq!(named, KNOWN);
    }
}
