//! The kernel of the machine, and the archive with its programs and libraries. They are made from Debian's packages, which
//! are downloaded and unpacked but not installed, and are kept in `target/rdma-vm` until the recipe changes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::archive::Archive;
use super::modules;
use crate::error::{Error, FileContext};
use crate::run::{capture, run};
use crate::workspace;

/// The package that depends on the newest kernel.
const KERNEL: &str = "linux-image-amd64";

/// The packages whose programs are in the machine, together with the libraries that they need.
const PACKAGES: [&str; 11] = [
    "busybox-static",
    // dash is the shell: that of busybox would use its own `ip` instead of the real one.
    "dash",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "libcap2-bin",
    // Programs that are built here need these libraries; those of other programs are added as dependencies.
    "libgcc-s1",
    "libstdc++6",
    "perftest",
    "rdmacm-utils",
    "zlib1g",
];

/// The kernel modules that the machine loads, and those that they depend on.
const MODULES: [&str; 9] = [
    "crc32_generic",
    "crc32c_generic",
    "virtio_pci",
    "virtio_net",
    "virtio_rng",
    "veth",
    "ib_uverbs",
    "rdma_rxe",
    "rdma_ucm",
];

/// The beginnings of the paths in the packages that the machine does not need.
const LEFT_OUT: [&str; 4] =
    ["usr/share/", "usr/include/", "usr/lib/x86_64-linux-gnu/gconv/", "usr/lib/x86_64-linux-gnu/perl"];

/// The folders that are links to those in `usr`.
const MERGED: [&str; 4] = ["bin", "lib", "lib64", "sbin"];

/// The version of the code below. It is raised when the code makes another image from the same packages.
const FORMAT: u32 = 1;

/// The files that a machine boots.
pub(super) struct Image {
    /// The kernel.
    pub(super) kernel: PathBuf,
    /// The archive with programs, libraries and kernel modules.
    pub(super) files: PathBuf,
}

/// The image in `target/rdma-vm` if it was made by this recipe, otherwise a new one.
pub(super) fn get_or_make(folder: &Path) -> Result<Image, Error> {
    let image = folder.join("image");
    let recipe = format!("{FORMAT} {KERNEL} {} {}\n", PACKAGES.join(" "), MODULES.join(" "));
    let is_there = || std::fs::read_to_string(image.join("recipe")).is_ok_and(|present| present == recipe);
    if !is_there() {
        println!("making the virtual machine's image from Debian packages (90 MB), once");
        let scratch = tempfile::Builder::new().prefix("making-").tempdir_in(folder);
        let scratch = scratch.context("make a folder in", folder)?;
        let new = scratch.path().join("image");
        workspace::create_folder(&new)?;
        make(scratch.path(), &new)?;
        let path = new.join("recipe");
        std::fs::write(&path, &recipe).context("write", &path)?;
        if image.exists() && !is_there() {
            std::fs::remove_dir_all(&image).context("remove", &image)?;
        }
        // Renaming publishes the whole image at once. If another run was faster, its image is used.
        if let Err(source) = std::fs::rename(&new, &image)
            && !is_there()
        {
            return Err(Error::File { action: "rename", path: new, source });
        }
    }
    Ok(Image { kernel: image.join("kernel"), files: image.join("files.cpio") })
}

/// Writes the kernel and the archive to `image`.
fn make(scratch: &Path, image: &Path) -> Result<(), Error> {
    let kernel_tree = scratch.join("kernel-tree");
    let tree = scratch.join("tree");
    let (kernel_package, packages) = names()?;
    unpack(&[kernel_package], &scratch.join("kernel-package"), &kernel_tree)?;
    unpack(&packages, &scratch.join("packages"), &tree)?;

    let boot = kernel_tree.join("boot");
    let kernel =
        workspace::entries(&boot)?.into_iter().find(|path| workspace::name(path).starts_with("vmlinuz-"));
    let kernel = kernel.ok_or(Error::Missing {
        what: "kernel in Debian's package of it",
        advice: "its layout has changed: see xtask/src/rdma_vm/image.rs",
    })?;
    let copy = image.join("kernel");
    std::fs::copy(&kernel, &copy).context("copy", &kernel)?;

    let mut archive = Archive::default();
    archive.folder("usr", 0o755);
    for name in MERGED {
        archive.folder(&format!("usr/{name}"), 0o755);
        archive.link(name, &format!("usr/{name}"));
    }
    for name in ["dev", "proc", "sys", "run", "tmp", "root", "busybox"] {
        archive.folder(name, 0o755);
    }
    let mut packed = BTreeSet::new();
    pack(&mut archive, &mut packed, &tree, &tree)?;
    archive.folder("modules", 0o755);
    let busybox = tree.join("bin/busybox");
    for (number, module) in modules::in_order(&kernel_tree, &busybox, &MODULES)?.iter().enumerate() {
        let content = std::fs::read(module).context("read", module)?;
        archive.file(&format!("modules/{number:02}-{}", workspace::name(module)), 0o644, &content);
    }
    let path = image.join("files.cpio");
    std::fs::write(&path, archive.finish()).context("write", &path)
}

/// The package of the newest kernel, and all packages that the machine's programs need.
fn names() -> Result<(String, BTreeSet<String>), Error> {
    let kernel =
        capture(Command::new("apt-cache").args(["depends", "--important", KERNEL])).unwrap_or_default();
    let kernel = dependency_names(&kernel).find(|name| name.starts_with("linux-image-"));
    let kernel = kernel.ok_or(Error::Missing {
        what: "Debian package linux-image-amd64",
        advice: "the virtual machine is made of packages of the Debian for x86-64 that it is made on: run `apt-get update` there",
    })?;
    let all =
        capture(Command::new("apt-cache").args(["depends", "--recurse", "--important"]).args(PACKAGES))?;
    let mut packages: BTreeSet<_> = PACKAGES.map(str::to_owned).into();
    packages.extend(dependency_names(&all).filter(|name| name.starts_with("lib")).map(str::to_owned));
    Ok((kernel.to_owned(), packages))
}

/// The names after "Depends:" and "PreDepends:" in the output of `apt-cache depends`.
fn dependency_names(text: &str) -> impl Iterator<Item = &str> {
    let names = text.lines().filter_map(|line| line.split_once("Depends: "));
    names.map(|(_, name)| name.trim()).filter(|name| !name.contains(['<', ':']))
}

/// Downloads packages to one folder and unpacks them to another.
fn unpack<'a>(
    packages: impl IntoIterator<Item = &'a String>,
    downloads: &Path,
    tree: &Path,
) -> Result<(), Error> {
    workspace::create_folder(downloads)?;
    workspace::create_folder(tree)?;
    // The sandbox is off, because it cannot write to a folder of this user.
    run(Command::new("apt-get")
        .current_dir(downloads)
        .args(["download", "-qq", "-o", "APT::Sandbox::User=root"])
        .args(packages))?;
    for package in workspace::files(downloads, "deb")? {
        run(Command::new("dpkg-deb").arg("--extract").arg(package).arg(tree))?;
    }
    Ok(())
}

/// Adds the content of a folder of the tree. Files in `bin`, `lib` and so on are put below `usr`.
fn pack(
    archive: &mut Archive,
    packed: &mut BTreeSet<String>,
    tree: &Path,
    folder: &Path,
) -> Result<(), Error> {
    for source in workspace::entries(folder)? {
        let metadata = source.symlink_metadata().context("look at", &source)?;
        let path = place(&source.strip_prefix(tree).unwrap_or(&source).to_string_lossy());
        if LEFT_OUT.iter().any(|left_out| format!("{path}/").starts_with(left_out)) {
            continue;
        }
        let is_there = MERGED.iter().any(|name| path == format!("usr/{name}")) || path == "usr";
        if !is_there && packed.insert(path.clone()) {
            archive.copy(&path, &source, &metadata)?;
        }
        if metadata.is_dir() {
            pack(archive, packed, tree, &source)?;
        }
    }
    Ok(())
}

/// The place of a package's file in the machine.
fn place(path: &str) -> String {
    let first = path.split('/').next().unwrap_or(path);
    if MERGED.contains(&first) { format!("usr/{path}") } else { path.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_real_packages_of_this_architecture() {
        let text = "iproute2\n  PreDepends: libc6\n  Depends: libmnl0\n |Depends: debconf\n  Depends: <debconf-2.0>\n    \
                    cdebconf\n  Depends: libelf1:i386\n";
        assert_eq!(dependency_names(text).collect::<Vec<_>>(), ["libc6", "libmnl0", "debconf"]);
    }

    #[test]
    fn old_places_are_below_usr() {
        assert_eq!(place("lib/x86_64-linux-gnu/libc.so.6"), "usr/lib/x86_64-linux-gnu/libc.so.6");
        assert_eq!(place("lib64"), "usr/lib64");
        assert_eq!(place("usr/bin/rdma"), "usr/bin/rdma");
        assert_eq!(place("etc/libibverbs.d"), "etc/libibverbs.d");
    }
}
