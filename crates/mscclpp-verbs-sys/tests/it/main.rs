//! Tests that are reported as ignored where there is no C compiler, no header or no libibverbs.

mod layout;
mod real_library;

use libtest_mimic::Arguments;

fn main() {
    let trials = layout::trials().into_iter().chain(real_library::trials()).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
