//! Several nodes on one machine: network namespaces on one switch. This needs root and `ip`.

use std::{
    ffi::OsStr,
    path::Path,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::namespaces::ip;

/// Nodes with an interface each, `wire`, on one switch. They are removed when this is dropped.
pub struct Net {
    /// The switch, and behind it the nodes.
    names: Vec<String>,
}

impl Net {
    /// Makes so many nodes. The error says what is missing, such as `ip` or the right to use it.
    pub fn new(nodes: usize) -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (id, number) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let net = Self { names: (0..=nodes).map(|n| format!("mch{id}-{number}-{n}")).collect() };
        for name in &net.names {
            ip(&["netns", "add", name])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        let switch = net.names[0].as_str();
        ip(&["-n", switch, "link", "add", "switch", "type", "bridge"])?;
        ip(&["-n", switch, "link", "set", "switch", "up"])?;
        for (n, node) in net.names.iter().enumerate().skip(1) {
            let port = format!("port{n}");
            ip(&[
                "link", "add", "wire", "netns", node, "type", "veth", "peer", "name", &port, "netns", switch,
            ])?;
            ip(&["-n", switch, "link", "set", &port, "master", "switch", "up"])?;
            ip(&["-n", node, "addr", "add", &format!("10.77.0.{n}/24"), "dev", "wire"])?;
            ip(&["-n", node, "link", "set", "wire", "up"])?;
        }
        Ok(net)
    }

    /// A program on one of the nodes.
    pub fn command(&self, node: usize, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[node + 1]]).arg(program);
        command
    }

    /// Takes a node's only interface down.
    ///
    /// # Panics
    /// Panics if `ip` fails.
    pub fn cut(&self, node: usize) {
        ip(&["-n", &self.names[node + 1], "link", "set", "wire", "down"]).expect("an interface taken down");
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in self.names.iter().filter(|name| Path::new("/run/netns").join(name).exists()) {
            if let Err(error) = ip(&["netns", "del", name]) {
                eprintln!("{error}");
            }
        }
    }
}
