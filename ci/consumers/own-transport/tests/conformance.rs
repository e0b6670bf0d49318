//! Runs the conformance suite over Post.

use std::process::ExitCode;

use consumer_own_transport::Post;
use mscclpp::{Context, ContextBuilder, Transport};
use mscclpp_conformance::{Devices, Setup, run};

#[derive(Clone)]
struct OnDevices(Devices);

impl Setup for OnDevices {
    fn builder(&self) -> ContextBuilder {
        Context::builder().provider(Post::open().expect("a hub"))
    }

    fn transport(&self) -> Transport {
        Post::TRANSPORT
    }

    fn devices(&self) -> Devices {
        self.0
    }

    fn maps_peer_memory(&self) -> bool {
        false
    }

    fn writes_from_local_memory(&self) -> bool {
        true
    }
}

fn main() -> ExitCode {
    run(Devices::all().into_iter().map(|devices| (devices.to_string(), OnDevices(devices))), [])
}
