//! The errors of the commands, with texts that say what to do next.

use std::path::PathBuf;

/// The error of every command. Its text leaves out that of its source, which `main` prints after it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A kernel could not be compiled, or the cache of compiled kernels could not be written.
    #[error(transparent)]
    Gpu(#[from] mscclpp_gpu::Error),

    /// A file could not be read, written, copied or listed.
    #[error("cannot {action} {}", path.display())]
    File { action: &'static str, path: PathBuf, source: std::io::Error },

    /// A program could not be started.
    #[error("cannot start `{program}`")]
    Start { program: String, source: std::io::Error },

    /// A program ran and reported failure.
    #[error("`{command}` failed ({status})")]
    Failed { command: String, status: std::process::ExitStatus },

    /// A program or file that the command needs is missing.
    #[error("no {what} found; {advice}")]
    Missing { what: &'static str, advice: &'static str },

    /// No NVRTC is pinned for this kind of machine.
    #[error(
        "no NVRTC is pinned for {os} on {arch}; name one in MSCCLPP_NVRTC_SO, or install a CUDA toolkit and pass --nvrtc toolkit"
    )]
    NotPinned { os: &'static str, arch: &'static str },

    /// Kernels did not compile; the compiler's messages have been printed.
    #[error("{0} of the kernels did not compile")]
    Kernels(usize),

    /// The PTX that is checked in differs from that of the sources.
    #[error(
        "cuda/ptx does not match cuda/kernels and cuda/include; run `cargo xtask build-kernels` and commit"
    )]
    Stale,

    /// There is no PTX of that kernel.
    #[error("cuda/ptx has no kernel {kernel}; it has {known}")]
    NoSuchKernel { kernel: String, known: String },

    /// A file of compressed PTX is damaged.
    #[error("{} is no zlib stream of text; run `cargo xtask build-kernels`", .0.display())]
    NotCompressed(PathBuf),

    /// The bindings that are checked in differ from what the headers give.
    #[error(
        "crates/mscclpp-verbs-sys/src/bindings.rs does not match the headers; run `cargo xtask gen-verbs` and commit"
    )]
    StaleVerbs,

    /// The packed file is too large to be sent.
    #[error("{} has {bytes} bytes, more than {most}: pack only some packages (--package), or see what has grown", path.display())]
    TooLarge { path: PathBuf, bytes: u64, most: u64 },

    /// A figure that is checked in differs from that of its file.
    #[error("{} differs from the figure of docs/figures; run `cargo xtask site --figures` and commit", .0.display())]
    StaleFigure(PathBuf),

    /// The listings that are checked in differ from the crates' public items.
    #[error(
        "docs/api does not list what these crates offer: {0}; if the change is meant, run `cargo xtask api` and commit"
    )]
    StaleApi(String),

    /// The output of rustdoc is missing or not understood.
    #[error("cannot list the items in {}; remove it, run the command again, or use the Rust that docs/src/development.md names", path.display())]
    Api { path: PathBuf, source: Box<public_api::Error> },

    /// A fetched file does not have the expected hash.
    #[error("{} does not have the SHA-256 {expected}; remove it and fetch again, or name headers with --headers", path.display())]
    Hash { path: PathBuf, expected: &'static str },

    /// Debian's kernel for the virtual machine lacks a module.
    #[error("Debian's kernel has no module {name}; see MODULES in xtask/src/rdma_vm/image.rs")]
    NoModule { name: String },

    /// A virtual machine ended before its command did.
    #[error(
        "the virtual machine of node {node} ended before its command did; its kernel says in {}:\n{end}",
        log.display()
    )]
    MachineDied { node: u32, log: PathBuf, end: String },

    /// A virtual machine was ended at its time limit.
    #[error(
        "node {node} in the virtual machine: {what} (--timeout SECONDS sets another limit); its kernel says in {}:\n{end}",
        log.display()
    )]
    MachineTimeout { node: u32, what: String, log: PathBuf, end: String },

    /// A line of cargo's JSON messages was not JSON.
    #[error("cannot understand cargo's messages")]
    Messages(#[from] serde_json::Error),
}

/// Adds the action and the file to an I/O error.
pub(crate) trait FileContext<T> {
    /// `action` is a verb that fits "cannot ACTION PATH".
    fn context(self, action: &'static str, path: &std::path::Path) -> Result<T, Error>;
}

impl<T> FileContext<T> for std::io::Result<T> {
    fn context(self, action: &'static str, path: &std::path::Path) -> Result<T, Error> {
        self.map_err(|source| Error::File { action, path: path.to_owned(), source })
    }
}
