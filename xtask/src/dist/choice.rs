//! Which tests are packed, and which of them run alone.

use super::{Binary, Kind};

/// A package and one of its tests.
type Test = (&'static str, &'static str);

/// Packages of which nothing is packed: all their tests need the sources, or stand-ins that are built beside them. The Python
/// package travels as a wheel.
const PACKAGES_OF_SOURCES: [&str; 4] = ["mscclpp-fake-hip", "mscclpp-kernels", "mscclpp-python", "xtask"];

/// Packages whose tests use no device. They are the same on every machine, and would take a tenth of the pack.
const PACKAGES_WITHOUT_DEVICES: [&str; 7] = [
    "mscclpp-bootstrap",
    "mscclpp-derive",
    "mscclpp-ib",
    "mscclpp-net",
    "mscclpp-os",
    "mscclpp-test-support",
    "mscclpp-verbs-sys",
];

/// What is not built unless it is asked for.
pub(super) fn packages_left_out() -> impl Iterator<Item = &'static str> {
    PACKAGES_OF_SOURCES.into_iter().chain(PACKAGES_WITHOUT_DEVICES)
}

/// One compiles C code of its folder; model checks are the same on every machine.
const LEFT_OUT: [Test; 3] =
    [("mscclpp-core", "loom"), ("mscclpp-nccl", "fallback"), ("mscclpp-proxy", "loom")];

/// These count what the whole machine or a device has of something, or take all of it, so that other tests would disturb
/// them, and they others.
const ALONE: [Test; 6] = [
    ("mscclpp", "resources"),
    ("mscclpp-bootstrap", "descriptors"),
    ("mscclpp-bootstrap", "resources"),
    ("mscclpp-cuda-ipc", "resources"),
    ("mscclpp-gpu", "resources"),
    ("mscclpp-nccl", "clients"),
];

/// Whether it runs where there is nothing of the repository, and is of use there.
pub(super) fn is_packed(binary: &Binary) -> bool {
    !(PACKAGES_OF_SOURCES.contains(&&*binary.package) || is_one_of(&LEFT_OUT, binary))
}

/// Whether it must run while no other test does.
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
        let binary = |kind, name: &str| Binary {
            kind,
            package: "mscclpp-nccl".to_owned(),
            name: name.to_owned(),
            path: PathBuf::new(),
        };
        assert!(!is_packed(&binary(Kind::Test, "fallback")) && is_packed(&binary(Kind::Test, "calls")));
        assert!(is_packed(&binary(Kind::Library, "nccl")) && !runs_alone(&binary(Kind::Library, "clients")));
        assert!(runs_alone(&binary(Kind::Test, "clients")));
    }
}
