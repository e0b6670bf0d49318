//! The kernel modules that must be loaded, and their order.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;
use crate::run::run;
use crate::workspace;

/// The files of the modules `names`, and of those they depend on, in an order in which they can be loaded. `tree` is the
/// unpacked kernel package; `busybox` runs here and lists the dependencies.
pub(super) fn in_order(tree: &Path, busybox: &Path, names: &[&str]) -> Result<Vec<PathBuf>, Error> {
    let folder = workspace::entries(&tree.join("lib/modules"))?.into_iter().next();
    let folder = folder.ok_or(Error::Missing {
        what: "modules in Debian's package of the kernel",
        advice: "its layout has changed: see xtask/src/rdma_vm/modules.rs",
    })?;
    run(Command::new(busybox).args(["depmod", "-b"]).arg(tree).arg(workspace::name(&folder)))?;
    let dependencies = workspace::read(&folder.join("modules.dep"))?;
    let order = loading_order(&dependencies, names).map_err(|name| Error::NoModule { name })?;
    Ok(order.into_iter().map(|file| folder.join(file)).collect())
}

/// Orders modules by a text with lines `FILE: FILES...`, in which the first file needs those after the colon, directly or
/// indirectly. The error is a name that no file has.
fn loading_order<'a>(dependencies: &'a str, names: &[&str]) -> Result<Vec<&'a str>, String> {
    let needs: HashMap<&str, &str> = dependencies.lines().filter_map(|line| line.split_once(':')).collect();
    let file = |name: &str| needs.keys().find(|file| module_name(file) == name.replace('-', "_")).copied();
    let mut order = Vec::new();
    for name in names {
        add(file(name).ok_or((*name).to_owned())?, &needs, &mut order);
    }
    Ok(order)
}

fn add<'a>(file: &'a str, needs: &HashMap<&'a str, &'a str>, order: &mut Vec<&'a str>) {
    if order.contains(&file) {
        return;
    }
    for needed in needs.get(file).copied().unwrap_or_default().split_whitespace() {
        add(needed, needs, order);
    }
    order.push(file);
}

/// A module's name: its file's name with underscores, without `.ko` and anything after it.
fn module_name(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.split(".ko").next().unwrap_or(name).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPENDENCIES: &str = "kernel/net/veth.ko:\n\
        kernel/rxe/rdma_rxe.ko: kernel/core/ib_uverbs.ko kernel/core/ib_core.ko kernel/net/ip6-tunnel.ko\n\
        kernel/core/ib_uverbs.ko: kernel/core/ib_core.ko\n\
        kernel/core/ib_core.ko:\n\
        kernel/net/ip6-tunnel.ko:\n";

    #[test]
    fn what_is_needed_comes_first_and_once() {
        let order = loading_order(DEPENDENCIES, &["rdma_rxe", "veth", "ib_uverbs"]).unwrap();
        assert_eq!(
            order,
            [
                "kernel/core/ib_core.ko",
                "kernel/core/ib_uverbs.ko",
                "kernel/net/ip6-tunnel.ko",
                "kernel/rxe/rdma_rxe.ko",
                "kernel/net/veth.ko",
            ]
        );
        assert_eq!(loading_order(DEPENDENCIES, &["ip6_tunnel"]).unwrap(), ["kernel/net/ip6-tunnel.ko"]);
    }

    #[test]
    fn a_module_that_is_not_there_is_named() {
        assert_eq!(loading_order(DEPENDENCIES, &["veth", "mlx5_ib"]), Err("mlx5_ib".to_owned()));
    }
}
