//! The choice of the tests that are packed, and of those that run alone.

use super::{Binary, Kind};

/// A package and one of its tests.
type Test = (&'static str, &'static str);

/// Packages of which nothing is packed: all their tests need the sources, or libraries that are built beside them. The
/// Python package is packed as a wheel.
const PACKAGES_OF_SOURCES: [&str; 4] = ["mscclpp-fake-hip", "mscclpp-kernels", "mscclpp-python", "xtask"];

/// Packages whose tests use no device. Their results are the same on every machine, and they would add a tenth to the pack.
const PACKAGES_WITHOUT_DEVICES: [&str; 9] = [
    "mscclpp-bootstrap",
    "mscclpp-bootstrap-simulation",
    "mscclpp-derive",
    "mscclpp-fake-ib",
    "mscclpp-ib",
    "mscclpp-net",
    "mscclpp-os",
    "mscclpp-test-support",
    "mscclpp-verbs-sys",
];

/// The packages that are built only if they are named.
pub(super) fn packages_left_out() -> impl Iterator<Item = &'static str> {
    PACKAGES_OF_SOURCES.into_iter().chain(PACKAGES_WITHOUT_DEVICES)
}

/// Tests that are left out: model checks have the same results on every machine.
const LEFT_OUT: [Test; 2] = [("mscclpp-core", "loom"), ("mscclpp-proxy", "loom")];

/// Tests that run alone: they count resources of the whole machine or of a device, or use them up, so other tests would
/// disturb them, and they would disturb others.
const ALONE: [Test; 5] = [
    ("mscclpp", "resources"),
    ("mscclpp-bootstrap", "resources"),
    ("mscclpp-cuda-ipc", "resources"),
    ("mscclpp-gpu", "resources"),
    ("mscclpp-nccl", "clients"),
];

/// Whether a binary can run without the repository, and is useful there.
pub(super) fn is_packed(binary: &Binary) -> bool {
    !(PACKAGES_OF_SOURCES.contains(&&*binary.package) || is_one_of(&LEFT_OUT, binary))
}

/// Whether a test must run while no other test does.
pub(super) fn runs_alone(binary: &Binary) -> bool {
    is_one_of(&ALONE, binary)
}

fn is_one_of(tests: &[Test], binary: &Binary) -> bool {
    binary.kind == Kind::Test && tests.contains(&(&*binary.package, &*binary.name))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::workspace;

    #[test]
    fn each_test_that_is_named_exists() {
        for (package, test) in LEFT_OUT.iter().chain(&ALONE) {
            let folder = workspace::root().join("crates").join(package).join("tests");
            let places: [PathBuf; 2] = [folder.join(format!("{test}.rs")), folder.join(test).join("main.rs")];
            assert!(places.iter().any(|place| place.exists()), "{package} has no test {test}");
        }
    }

    #[test]
    fn only_tests_are_left_out_by_name() {
        let binary = |kind, package: &str, name: &str| Binary {
            kind,
            package: package.to_owned(),
            name: name.to_owned(),
            path: PathBuf::new(),
        };
        let of_nccl = |kind, name| binary(kind, "mscclpp-nccl", name);
        assert!(
            !is_packed(&binary(Kind::Test, "mscclpp-core", "loom")) && is_packed(&of_nccl(Kind::Test, "it"))
        );
        assert!(
            is_packed(&of_nccl(Kind::Library, "nccl")) && !runs_alone(&of_nccl(Kind::Library, "clients"))
        );
        assert!(runs_alone(&of_nccl(Kind::Test, "clients")));
    }
}
