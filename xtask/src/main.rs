//! Automation of this repository: `cargo xtask <command>`. Each command has a module of its own.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod api;
mod build_kernels;
mod dist;
mod error;
mod gen_verbs;
mod rdma_vm;
mod run;
mod site;
mod sources;
mod toolchain;
mod workspace;

/// Automation of the mscclpp repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the public items of each published crate, in docs/api.
    Api(api::Options),
    /// Compile cuda/kernels/*.cu to the PTX in cuda/ptx, and the kernels of tests to the cache of compiled kernels.
    BuildKernels(build_kernels::Options),
    /// Build tests, examples and programs, stripped, into target/dist/files, to run where there is no Rust, or pack them.
    Dist(dist::Options),
    /// Make the Rust types of libibverbs in crates/mscclpp-verbs-sys from rdma-core's headers.
    GenVerbs(gen_verbs::Options),
    /// Run tests or commands in a virtual machine that has InfiniBand verbs in software.
    RdmaVm(rdma_vm::Options),
    /// Print the PTX of a kernel that is checked in.
    Ptx(build_kernels::PrintOptions),
    /// Build the book and the reference as one site in target/site, with the figures drawn anew and all links checked.
    Site(site::Options),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Api(options) => api::run(&options).map(|()| ExitCode::SUCCESS),
        Command::BuildKernels(options) => build_kernels::run(&options).map(|()| ExitCode::SUCCESS),
        Command::Dist(options) => dist::run(&options).map(|()| ExitCode::SUCCESS),
        Command::GenVerbs(options) => gen_verbs::run(&options).map(|()| ExitCode::SUCCESS),
        Command::RdmaVm(options) => rdma_vm::run(&options),
        Command::Ptx(options) => build_kernels::print(&options).map(|()| ExitCode::SUCCESS),
        Command::Site(options) => site::run_command(&options).map(|()| ExitCode::SUCCESS),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", mscclpp_os::Report(&error));
            ExitCode::FAILURE
        }
    }
}
