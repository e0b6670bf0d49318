//! The address at which rank 0 of a launched job listens.

use std::net::Ipv6Addr;

use crate::address::Address;
use crate::digest::digest;
use crate::launch::variables::{Setting, Variables, agreed};
use crate::{Error, Result};

/// The first of the ports that are computed. They are below those that systems hand out by themselves.
const FIRST_PORT: u16 = 10_000;

/// The properties of a job that determine its address.
pub(crate) struct Job<'a> {
    pub(crate) id: Option<&'a str>,
    pub(crate) on_one_host: bool,
    /// Whether Slurm started the ranks, and not a launcher inside one of its steps.
    pub(crate) of_slurm: bool,
}

/// The address at which rank 0 listens, and where it comes from.
pub(crate) struct RootAddress {
    pub(crate) address: String,
    /// The origin of the address, for the log.
    pub(crate) how: String,
    /// The variable that names the node.
    pub(crate) variable: Option<&'static str>,
}

impl RootAddress {
    /// Makes an address on the node that `named` names, or describes in another way.
    fn at(
        host: &str,
        port: u16,
        named: &Setting<String>,
        allowed: &'static str,
        how: String,
    ) -> Result<Self> {
        let address = join(host, port);
        if host.is_empty() || Address::parse(&address, None).is_err() {
            return Err(Error::BadEnvironment { variable: named.name, value: named.value.clone(), allowed });
        }
        Ok(Self { address, how, variable: Some(named.name) })
    }
}

/// Finds the address of rank 0. Returns `None` if nothing determines it.
pub(crate) fn find(variables: &Variables<'_>, job: &Job<'_>) -> Result<Option<RootAddress>> {
    if let Some(address) = given(variables)? {
        Address::parse(&address.value, Some(address.name))?;
        let how = address.to_string();
        return Ok(Some(RootAddress { address: address.value, how, variable: Some(address.name) }));
    }
    let port_of_job = job.id.map(port_of_job);
    if let Some(host) = variables.text("MASTER_ADDR")? {
        let theirs = variables.number("MASTER_PORT")?;
        let (port, how) = match (&theirs, port_of_job) {
            (Some(theirs), _) => (port_beside(theirs.value)?, format!("a port beside {theirs}")),
            (None, Some(port)) => (port, "a port of the job's id".to_owned()),
            (None, None) => return Ok(None),
        };
        let how = format!("{host}, {how}");
        return RootAddress::at(
            &host.value,
            port,
            &host,
            "an IP address that is not link-local, or a host name",
            how,
        )
        .map(Some);
    }
    let Some(port) = port_of_job else { return Ok(None) };
    if job.on_one_host {
        let how = "one node, a port of the job's id".to_owned();
        return Ok(Some(RootAddress { address: join("127.0.0.1", port), how, variable: None }));
    }
    if !job.of_slurm {
        return Ok(None);
    }
    let nodes = variables.first_text(&["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"])?;
    let Some(nodes) = nodes else { return Ok(None) };
    let host = first_host(&nodes.value).unwrap_or_default();
    let allowed = "a list of nodes such as node[07-12],login1; or set MSCCLPP_ADDRESS, which goes before it";
    let how = format!("the first node of {nodes}, a port of the job's id");
    RootAddress::at(&host, port, &nodes, allowed, how).map(Some)
}

/// Returns the address that the user has set, under its name or its older one.
pub(crate) fn given(variables: &Variables<'_>) -> Result<Option<Setting<String>>> {
    let names = [variables.text("MSCCLPP_ADDRESS")?, variables.text("MSCCLPP_COMM_ID")?];
    agreed("addresses", names.iter().flatten())
}

/// Checks a value of `MASTER_PORT`.
pub(crate) fn port(value: usize) -> Result<u16> {
    match u16::try_from(value) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(Error::BadEnvironment {
            variable: "MASTER_PORT",
            value: value.to_string(),
            allowed: "1 to 65535",
        }),
    }
}

/// Returns the port of a job whose launcher uses the port `theirs` itself: 10000 plus its last four digits, or 20000
/// plus these if `theirs` is from 10000 to 19999. It is never the same port, and jobs with neighbouring ports do not
/// meet.
fn port_beside(theirs: usize) -> Result<u16> {
    let theirs = port(theirs)?;
    let base = if theirs / FIRST_PORT == 1 { 2 * FIRST_PORT } else { FIRST_PORT };
    Ok(base + theirs % FIRST_PORT)
}

/// Computes a port from 10000 to 29999 from a job's id.
fn port_of_job(id: &str) -> u16 {
    FIRST_PORT + u16::from_le_bytes(digest(&[id.as_bytes()])) % (2 * FIRST_PORT)
}

fn join(host: &str, port: u16) -> String {
    let host = host.trim();
    match host.parse::<Ipv6Addr>() {
        Ok(ip) => format!("[{ip}]:{port}"),
        Err(_) => format!("{host}:{port}"),
    }
}

/// Returns the first node of a list in Slurm's format: `node[07-12,20],login1` begins with `node07`.
fn first_host(nodes: &str) -> Option<String> {
    let head = nodes.trim();
    let end = head.find([',', '[']).unwrap_or(head.len());
    let (prefix, rest) = head.split_at(end);
    let host = match rest.strip_prefix('[') {
        None => prefix.to_owned(),
        Some(ranges) => {
            let (ranges, suffix) = ranges.split_once(']')?;
            // Further brackets behind these belong to nodes that are named by several numbers.
            let suffix = &suffix[..suffix.find(',').unwrap_or(suffix.len())];
            let first = ranges.split([',', '-']).next()?;
            let suffix = if suffix.contains('[') { first_host(suffix)? } else { suffix.to_owned() };
            format!("{prefix}{first}{suffix}")
        }
    };
    (!host.is_empty()).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_beside_is_another_one_and_keeps_neighbours_apart() {
        for (theirs, ours) in [(29500, 19500), (29501, 19501), (12345, 22345), (1, 10001), (65535, 15535)] {
            assert_eq!(port_beside(theirs).unwrap(), ours);
        }
        for theirs in 1..=65535 {
            let ours = port_beside(theirs).unwrap();
            assert_ne!(usize::from(ours), theirs);
            assert!((10_000..30_000).contains(&ours));
        }
        for wrong in [0, 65536] {
            assert!(port_beside(wrong).unwrap_err().to_string().contains("MASTER_PORT"));
        }
    }

    #[test]
    fn a_port_of_a_job_is_the_same_everywhere() {
        let port = port_of_job("Slurm job 4711 step 0");
        assert!((10_000..30_000).contains(&port));
        assert_eq!(port, port_of_job("Slurm job 4711 step 0"));
        assert_ne!(port, port_of_job("Slurm job 4711 step 1"));
    }

    #[test]
    fn the_first_host_of_a_list() {
        for (nodes, first) in [
            ("node7", Some("node7")),
            ("node7,node9", Some("node7")),
            ("node[07-12,20],login1", Some("node07")),
            ("node[3,5]", Some("node3")),
            ("rack[2-3]-gpu", Some("rack2-gpu")),
            ("rack[2-3]n[01-16],x", Some("rack2n01")),
            ("", None),
            ("node[", None),
            ("[,x", None),
        ] {
            assert_eq!(first_host(nodes).as_deref(), first, "{nodes:?}");
        }
    }

    #[test]
    fn version_6_addresses_get_their_brackets() {
        assert_eq!(join("fd00::1", 7), "[fd00::1]:7");
        assert_eq!(join("node7", 7), "node7:7");
    }
}
