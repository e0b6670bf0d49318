//! Prints every device and how the devices reach each other, and tries everything that this crate can do on each of
//! them.
//!
//! ```text
//! cargo run --release -p mscclpp-gpu --features cuda-12040 --example device_info
//! ```
//!
//! Every step has a name; a failure is printed under it, and the program then ends with exit code 1.

mod kernel;
mod sharing;
mod steps;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use mscclpp_gpu::Platform;

type Outcome = Result<(), Box<dyn std::error::Error>>;

const SECONDS: Duration = Duration::from_secs(20);
const PATTERN: u64 = 0x0123_4567_89ab_cdef;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => run_all(),
        ["import", device, kind, handle, size, offset] => {
            match sharing::import(device, kind, handle, size, offset) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("in the importing process: {error}");
                    ExitCode::FAILURE
                }
            }
        }
        _ => {
            eprintln!("usage: device_info");
            ExitCode::from(2)
        }
    }
}

fn run_all() -> ExitCode {
    let gpus = match Platform::detect_or_sim().and_then(|platform| {
        println!("platform {platform}");
        platform.gpus()
    }) {
        Ok(gpus) => gpus,
        Err(error) => {
            println!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let mut steps = Steps { failed: 0 };
    for gpu in &gpus {
        let p = gpu.properties();
        println!(
            "\n{gpu}\n  uuid {}\n  PCI {}  NUMA node {}  compute capability {:?}  {} multiprocessors\n  exports {:?}",
            p.uuid.map(|byte| format!("{byte:02x}")).concat(),
            p.pci_bus_id.as_deref().unwrap_or("none"),
            p.numa_node.map_or("unknown".to_owned(), |node| node.to_string()),
            p.compute_capability,
            p.multiprocessors,
            p.export_kinds
        );
        for (name, step) in steps::ALL {
            steps.run(name, || step(gpu));
        }
    }
    for a in &gpus {
        for b in gpus.iter().filter(|b| b.id() != a.id()) {
            // All pairs of the simulated devices are alike.
            if a.platform() == Platform::Sim && (a.id(), b.id()) != (0, 1) {
                continue;
            }
            match a.peer_access(b) {
                Ok(access) => {
                    println!("\n{a} to {b}: {access:?}");
                    if access.reachable {
                        steps.run("peer", || sharing::peer(a, b));
                        steps.run("import on a peer, another process", || sharing::export_to_process(a, b));
                    }
                }
                Err(error) => steps.run("peer access", || Err(error.into())),
            }
        }
    }
    println!("\n{} failed", steps.failed);
    if steps.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

struct Steps {
    failed: usize,
}

impl Steps {
    fn run(&mut self, name: &str, step: impl FnOnce() -> Outcome) {
        let start = Instant::now();
        match step() {
            Ok(()) => println!("  ok      {name} ({:.1} ms)", start.elapsed().as_secs_f64() * 1e3),
            Err(error) => {
                self.failed += 1;
                println!("  FAILED  {name}: {error}");
            }
        }
    }
}

fn expect(what: &str, condition: bool) -> Outcome {
    if condition { Ok(()) } else { Err(format!("not so: {what}").into()) }
}
