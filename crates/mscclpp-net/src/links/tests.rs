use super::Protocol;

pub(super) const PROTOCOL: Protocol =
    Protocol { name: "mscclpp-test", title: "Test", magic: *b"TEST", version: 1 };
