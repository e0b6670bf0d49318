//! The conformance suite over Post.

use std::process::Command;

use consumer_own_transport::Post;
use mscclpp_core::{
    Context, ContextBuilder, Device, Transport,
    conformance::{self, Devices, Setup},
};

#[derive(Clone)]
struct OnDevices(Devices);

impl Setup for OnDevices {
    fn builder(&self) -> ContextBuilder {
        let post = Post::open().expect("a hub");
        Context::builder().provider(post).platform(self.0.platform())
    }

    fn transport(&self) -> Transport {
        Post::TRANSPORT
    }

    fn devices(&self) -> [Device; 2] {
        self.0.of_ends()
    }

    fn maps_peer_memory(&self) -> bool {
        false
    }

    fn writes_from_local_memory(&self) -> bool {
        true
    }

    /// This program once more, which `main` tells by its first argument.
    fn second_process(&self) -> Option<Command> {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--second-process", &self.0.to_string()]);
        Some(command)
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, devices] = &arguments[..]
        && first == "--second-process"
    {
        let devices = devices.parse().expect("devices, as the first process wrote them");
        return conformance::process::serve(&OnDevices(devices));
    }
    let on = |devices: Devices| conformance::trials_on(devices, &devices.to_string(), &OnDevices(devices));
    conformance::run(Devices::all().into_iter().flat_map(on).collect())
}
