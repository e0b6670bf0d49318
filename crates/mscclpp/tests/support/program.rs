//! The paths of the examples.

use std::{env, path::PathBuf};

/// Returns the path of an example: where cargo puts it, or beside this program under the name that `cargo xtask dist`
/// gives it.
pub(crate) fn program(example: &str) -> PathBuf {
    let this = env::current_exe().expect("this program");
    let here = this.parent().expect("a folder");
    let places = [here.join("../examples").join(example), here.join(format!("example-mscclpp-{example}"))];
    let there = places.iter().find(|place| place.exists());
    there.unwrap_or_else(|| panic!("{example} is not in {places:?}: `cargo build --examples` first")).clone()
}
