//! The command line of the examples that drive two devices from one process.

use std::{error::Error, process::ExitCode};

use mscclpp::Platform;

/// The `main` of the example with that name. `run` gets the two device numbers, if they were given.
pub(crate) fn main(
    name: &str,
    run: impl FnOnce(Option<[usize; 2]>) -> Result<(), Box<dyn Error>>,
) -> ExitCode {
    let usage =
        format!("usage: {name} [GPU GPU]    two device numbers, which may be equal [default: the first two]");
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let chosen = match arguments.as_slice() {
        [] => Some(None),
        [option] if option == "-h" || option == "--help" => {
            println!("{usage}");
            return ExitCode::SUCCESS;
        }
        [a, b] => a.parse().ok().zip(b.parse().ok()).map(|(a, b)| Some([a, b])),
        _ => None,
    };
    let Some(chosen) = chosen else {
        eprintln!("{usage}");
        return ExitCode::from(2);
    };
    match mscclpp::log::init().map_err(Into::into).and_then(|()| run(chosen)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Failed: {}", mscclpp::Report(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Returns the devices that were chosen, or the first two; with one device, that one twice.
pub(crate) fn numbers(chosen: Option<[usize; 2]>, platform: Platform) -> mscclpp::Result<[usize; 2]> {
    Ok(match chosen {
        Some(ids) => ids,
        None => [0, 1 % platform.device_count()?.max(1)],
    })
}
