//! The ways in which this process can meet others: the addresses of this machine, and the information of a launcher.

use mscclpp::Rendezvous;
use mscclpp::errors::BootstrapError;
use mscclpp_net::{env::Env, interface};
use serde_json::json;

use super::{
    child::Teller,
    finding::Section::{Launcher, Network},
};

const FIREWALL: &str =
    "other nodes must reach it: the page on Ethernet says what a firewall must let through";

pub(super) fn examine(teller: &Teller) {
    teller.trying("listing the network interfaces");
    interfaces(teller);
    teller.trying("reading what a launcher says");
    launcher(teller);
}

fn interfaces(teller: &Teller) {
    let env = match Env::read() {
        Ok(env) => env,
        Err(error) => {
            let (item, remedy) = (error.variable, "set it to such a value, or unset it");
            return teller.found(Network.problem(item, error, remedy));
        }
    };
    let all = match interface::list() {
        Ok(all) => all,
        Err(error) => {
            let remedy = "check whether this process may open netlink sockets";
            return teller.found(Network.problem("interfaces", mscclpp::Report(&error), remedy));
        }
    };
    let offered = match interface::candidates(&all, env.interface.as_deref(), env.family) {
        Ok(offered) => offered,
        Err(error) => {
            let remedy = "set MSCCLPP_SOCKET_IFNAME and MSCCLPP_SOCKET_FAMILY to an interface and a family that are there, or unset them";
            return teller.found(Network.problem("interfaces", error, remedy));
        }
    };
    if offered.is_empty() {
        let remedy = "bring one up, for jobs of this node alone `ip link set lo up` as root; or start the job where there is a network";
        return teller.found(Network.problem("interfaces", interface::NONE_UP, remedy));
    }
    if offered.iter().all(std::net::IpAddr::is_loopback) {
        let (reason, remedy) = (
            "only the loopback interface has an address, so other nodes cannot reach this one",
            "none is needed for jobs of one node; else give an interface an address (docker: --network host)",
        );
        teller.found(Network.unavailable("other nodes", reason, remedy));
    }
    for (place, ip) in offered.iter().enumerate() {
        let name = all.iter().find(|i| i.ip == *ip).map_or("?", |i| i.name.as_str());
        let text = match place {
            0 => format!("offered first; {FIREWALL}"),
            _ => "offered".to_owned(),
        };
        let facts = json!({"interface": name, "ip": ip.to_string(), "offered": place});
        teller.found(Network.ok(format!("{name} {ip}"), text).facts(facts));
    }
    for left_out in all.iter().filter(|i| !offered.contains(&i.ip)) {
        let text = match (&env.interface, env.family) {
            (Some(name), _) if *name != left_out.name => {
                format!("not offered: MSCCLPP_SOCKET_IFNAME is {name}")
            }
            (_, Some(family)) if !family.includes(&left_out.ip) => {
                "not offered: MSCCLPP_SOCKET_FAMILY is the other IP version".to_owned()
            }
            _ => "not offered: the address is valid only together with its interface".to_owned(),
        };
        let (name, ip) = (&left_out.name, left_out.ip.to_string());
        let facts = json!({"interface": name, "ip": ip, "offered": null});
        teller.found(Network.note(format!("{name} {ip}"), text).facts(facts));
    }
}

fn launcher(teller: &Teller) {
    let item = "ranks";
    teller.found(match Rendezvous::from_env() {
        Ok(job) => {
            let of = job.job.as_deref().unwrap_or("a job without an id");
            let text = format!("rank {} of {}, rank 0 at {}, {of}", job.rank, job.n_ranks, job.address);
            Launcher.ok(item, text).facts(json!({
                "rank": job.rank,
                "n_ranks": job.n_ranks,
                "address": job.address,
                "job": job.job,
                "local_rank": job.local_rank,
            }))
        }
        Err(BootstrapError::NotLaunched) => {
            Launcher.note(item, "no launcher has started this process").facts(json!({"rank": null}))
        }
        Err(error) => {
            let remedy = "start this program by the launcher, or unset the launcher's variables";
            Launcher.problem(item, mscclpp::Report(&error), remedy).facts(json!({"rank": null}))
        }
    });
}
