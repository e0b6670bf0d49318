//! Gives the library the name by which programs that were linked with NCCL look for it, and keeps it loaded: its threads may
//! outlive the last communicator.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
