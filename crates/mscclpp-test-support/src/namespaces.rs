//! Several nodes on one machine: network namespaces that are connected. This needs root and `ip`.

use std::{
    ffi::OsStr,
    path::Path,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::{Child, child::this_program};

/// Namespaces with an interface each, called `wire`, that leads to the others. They are removed when this is dropped.
pub struct Namespaces {
    names: Vec<String>,
}

/// Returns a command that runs another one in a network namespace of its own, where no interface is up; `None` if this process
/// may make none. Changes of the environment are kept.
pub fn without_network(command: &Command) -> Option<Command> {
    let alone = || {
        let mut alone = Command::new("unshare");
        alone.arg("-n");
        alone
    };
    alone().arg("true").output().ok().filter(|output| output.status.success())?;
    let mut alone = alone();
    alone.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => alone.env(name, value),
            None => alone.env_remove(name),
        };
    }
    Some(alone)
}

/// Runs `ip`. If it fails, the error is its message.
fn try_ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output().map_err(|e| format!("ip: {e}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    try_ip(arguments).map_err(|said| format!("needs network namespaces: ip {}: {said}", arguments.join(" ")))
}

impl Namespaces {
    /// Makes two namespaces with a link between them, and with one more interface each, `other`, that leads nowhere.
    pub fn new() -> Result<Self, String> {
        let namespaces = Self::bare(2)?;
        let [a, b] = [0, 1].map(|side| &*namespaces.names[side]);
        ip(&["link", "add", "wire", "netns", a, "type", "veth", "peer", "name", "wire", "netns", b])?;
        namespaces.set_up()
    }

    /// Makes so many nodes on one switch, which is a namespace behind theirs.
    pub fn switched(nodes: usize) -> Result<Self, String> {
        let namespaces = Self::bare(nodes + 1)?;
        let switch = &*namespaces.names[nodes];
        ip(&["-n", switch, "link", "add", "switch", "type", "bridge"])?;
        ip(&["-n", switch, "link", "set", "switch", "up"])?;
        for (n, node) in namespaces.names[..nodes].iter().enumerate() {
            let (port, address) = (format!("port{n}"), format!("10.77.0.{}/24", n + 1));
            ip(&[
                "link", "add", "wire", "netns", node, "type", "veth", "peer", "name", &port, "netns", switch,
            ])?;
            ip(&["-n", switch, "link", "set", &port, "master", "switch", "up"])?;
            ip(&["-n", node, "addr", "add", &address, "dev", "wire"])?;
            for interface in ["lo", "wire"] {
                ip(&["-n", node, "link", "set", interface, "up"])?;
            }
        }
        Ok(namespaces)
    }

    /// Makes two namespaces like [`Namespaces::new`], each with a link to an interface of this process's own namespace.
    pub fn apart() -> Result<Self, String> {
        let namespaces = Self::bare(2)?;
        for (name, port) in namespaces.names.iter().zip(namespaces.ports()) {
            ip(&["link", "add", "wire", "netns", name, "type", "veth", "peer", "name", &port])?;
            ip(&["link", "set", &port, "up"])?;
        }
        namespaces.set_up()
    }

    /// Returns the interfaces of this process's namespace that [`Namespaces::apart`] made.
    pub fn ports(&self) -> [String; 2] {
        [0, 1].map(|side| self.names[side].replacen('c', "p", 1).replace('-', ""))
    }

    fn bare(n: usize) -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = |side| format!("msc{}-{number}{side}", std::process::id());
        let namespaces = Self { names: ('a'..='z').take(n).map(name).collect() };
        for name in &namespaces.names {
            ip(&["netns", "add", name])?;
        }
        Ok(namespaces)
    }

    fn set_up(self) -> Result<Self, String> {
        for (side, name) in self.names.iter().enumerate() {
            let within = |arguments: &[&str]| ip(&[&["-n", name.as_str()], arguments].concat());
            within(&["link", "add", "other", "type", "veth", "peer", "name", "nowhere"])?;
            for (interface, net) in [("wire", 77), ("other", 78 + side)] {
                let (v4, v6) =
                    (format!("10.{net}.0.{}/24", side + 1), format!("fd00:{net}::{}/64", side + 1));
                within(&["addr", "add", &v4, "dev", interface])?;
                within(&["addr", "add", &v6, "dev", interface, "nodad"])?;
            }
            for interface in ["lo", "wire", "other", "nowhere"] {
                within(&["link", "set", interface, "up"])?;
            }
        }
        Ok(self)
    }

    /// Changes the network of one of the namespaces by `ip`.
    pub fn ip(&self, side: usize, arguments: &[&str]) {
        ip(&[&["-n", self.names[side].as_str()], arguments].concat()).expect("a change of the network");
    }

    /// Runs a program in one of the namespaces. If it fails, the error is its message.
    pub fn run(&self, side: usize, command: &[&str]) -> Result<(), String> {
        try_ip(&[&["netns", "exec", self.names[side].as_str()], command].concat())
    }

    /// Makes the command that runs a program in one of the namespaces.
    pub fn command(&self, side: usize, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[side]]).arg(program);
        command
    }

    /// Starts this program in one of the namespaces, as a child with that role.
    pub fn start(&self, side: usize, role: &str, environment: &[(&str, &str)]) -> Child {
        let mut command = self.command(side, this_program().get_program());
        command.envs(environment.iter().copied());
        Child::start_by(command, &[role])
    }

    /// Starts a process in each namespace.
    pub fn start_both(&self, roles: [&str; 2], environment: &[(&str, &str)]) -> [Child; 2] {
        [0, 1].map(|side| self.start(side, roles[side], environment))
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        // Deleting either end deletes the link. Sockets that have not ended yet may keep the namespaces for a while.
        let wires = self.names.iter().map(|name| ip(&["-n", name.as_str(), "link", "del", "wire"]));
        wires.for_each(drop);
        // Where namespaces are not allowed there are none to delete.
        let there = self.names.iter().filter(|name| Path::new("/run/netns").join(name).exists());
        for name in there {
            if let Err(error) = ip(&["netns", "del", name]) {
                eprintln!("{error}");
            }
        }
    }
}
