//! Checks that the types made by bindgen have the layout that a C compiler gives them with the installed header, which may
//! be newer than the one from which they were made. To compare with a header elsewhere, name its folder in
//! `C_INCLUDE_PATH`. With feature `rdma-sys`, the layouts of that crate's bindings are compared as well.

mod c;
#[cfg(feature = "rdma-sys")]
mod rdma_sys;
mod structures;

use libtest_mimic::Trial;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = match c::Compiler::find() {
        Ok(compiler) => {
            let again = compiler.clone();
            vec![
                Trial::test("structures_are_those_of_the_header", move || compiler.compare(&c::structures())),
                Trial::test("constants_are_those_of_the_header", move || again.compare(&c::constants())),
            ]
        }
        Err(reason) => {
            let lacks = |name| {
                Trial::test(name, move || Err(reason.into())).with_kind(reason).with_ignored_flag(true)
            };
            vec![lacks("structures_are_those_of_the_header"), lacks("constants_are_those_of_the_header")]
        }
    };
    #[cfg(feature = "rdma-sys")]
    trials.push(Trial::test("structures_are_those_of_the_crate_rdma_sys", || {
        rdma_sys::compare();
        Ok(())
    }));
    #[cfg(not(feature = "rdma-sys"))]
    trials.push(
        Trial::test("structures_are_those_of_the_crate_rdma_sys", || Err("built without rdma-sys".into()))
            .with_kind("built without feature rdma-sys")
            .with_ignored_flag(true),
    );
    trials
}
