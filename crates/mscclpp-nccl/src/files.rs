//! NCCL's configuration files, whose lines are values of environment variables: `NAME=value`, or a comment after `#`.
//!
//! `NCCL_CONF_FILE` names the user's file, in place of `~/.nccl.conf`; `/etc/nccl.conf` is that of the node. A variable of the
//! environment goes before both, and the user's file before that of the node.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::OnceLock,
};

const OF_NODE: &str = "/etc/nccl.conf";

/// The variables that the files set.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Files {
    values: BTreeMap<String, String>,
    /// The file that could not be read, and why.
    pub(crate) unreadable: Option<String>,
}

impl Files {
    /// The files of this process, read at the first call.
    pub(crate) fn of_process() -> &'static Self {
        static FILES: OnceLock<Files> = OnceLock::new();
        FILES.get_or_init(|| {
            Self::read(std::env::var_os("NCCL_CONF_FILE"), std::env::home_dir(), OF_NODE.as_ref())
        })
    }

    fn read(named: Option<OsString>, home: Option<PathBuf>, of_node: &Path) -> Self {
        let named = named.filter(|name| !name.is_empty());
        let of_user = named.as_ref().map(PathBuf::from).or_else(|| Some(home?.join(".nccl.conf")));
        let mut files = Self::default();
        for path in of_user.into_iter().chain([of_node.to_owned()]) {
            match fs::read(&path) {
                Ok(bytes) => files.add(&String::from_utf8_lossy(&bytes)),
                Err(error)
                    if error.kind() == ErrorKind::NotFound && named.as_deref() != Some(path.as_os_str()) => {}
                Err(error) => files.unreadable = Some(format!("{}: {error}", path.display())),
            }
        }
        files
    }

    fn add(&mut self, text: &str) {
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            if let Some((name, value)) = line.split_once('=') {
                self.values.entry(name.trim().to_owned()).or_insert_with(|| value.trim().to_owned());
            }
        }
    }

    /// The names of the variables that the files set.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }
}

/// The value of a variable: in the environment, or else in a file.
pub(crate) fn lookup(name: &'static str) -> Option<OsString> {
    let in_file = || Files::of_process().values.get(name).map(|value| OsStr::new(value).to_owned());
    std::env::var_os(name).or_else(in_file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_values_and_the_first_counts() {
        let mut files = Files::default();
        files.add("# NCCL_DEBUG=INFO\nNCCL_DEBUG = WARN \n\nno value\nNCCL_SOCKET_IFNAME==eth0\n");
        files.add("NCCL_DEBUG=INFO\nNCCL_HOSTID=a\n");
        let values: Vec<_> = files.values.iter().map(|(name, value)| format!("{name}:{value}")).collect();
        assert_eq!(values, ["NCCL_DEBUG:WARN", "NCCL_HOSTID:a", "NCCL_SOCKET_IFNAME:=eth0"]);
    }

    #[test]
    fn a_named_file_replaces_that_of_the_user_and_must_be_there() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        file(".nccl.conf", "A=user\n");
        let (named, node) = (file("named", "B=named\n"), file("node", "A=node\nB=node\n"));
        let read = |named: Option<&Path>| {
            let files = Files::read(
                named.map(|path| path.as_os_str().to_owned()),
                Some(folder.path().to_owned()),
                &node,
            );
            (["A", "B"].map(|name| files.values[name].clone()), files.unreadable.is_some())
        };
        assert_eq!(read(None), (["user", "node"].map(str::to_owned), false));
        assert_eq!(read(Some(&named)), (["node", "named"].map(str::to_owned), false));
        assert_eq!(read(Some(&folder.path().join("none"))), (["node", "node"].map(str::to_owned), true));
    }
}
