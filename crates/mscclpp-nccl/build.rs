//! Gives the library the name by which programs that were linked with NCCL look for it, and keeps it loaded: its threads may
//! outlive the last communicator. Programs of this package ignore both.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Cargo would pass arguments for `cdylib` alone on to the extension module of Python, which depends on this package.
    println!("cargo:rustc-link-arg=-Wl,-soname,libnccl.so.2");
    println!("cargo:rustc-link-arg=-Wl,-z,nodelete");
}
