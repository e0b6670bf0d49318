//! `plot`: result files as one picture, time and bandwidth over size, in the colours that the reader prefers, light or dark.

mod figure;
mod nccl;
mod picture;
mod schemes;

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use clap::Args;
use figure::Figure;

use crate::{
    Result,
    report::{self, Report},
};

#[derive(Args)]
pub(crate) struct Options {
    /// Files written by `--json` or `hold --write`, or tables printed by nccl-tests, as text.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The file for the SVG [default: standard output].
    #[arg(short, long, value_name = "OUT.svg")]
    output: Option<PathBuf>,
    /// The width of the picture in pixels. Letters keep their size: 420 is for a phone.
    #[arg(long, value_name = "PIXELS", default_value_t = 900, value_parser = clap::value_parser!(u32).range(320..=4000))]
    width: u32,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let reports = options.files.iter().map(|file| read(file)).collect::<Result<Vec<_>>>()?;
    let figure = Figure::of(&reports)?;
    for row in &figure.left_out {
        eprintln!("{row} FAILED when it was measured, and is not drawn");
    }
    let picture = picture::draw(&figure, options.width)?;
    match &options.output {
        Some(path) => {
            fs::write(path, picture).map_err(|error| format!("writing {}: {error}", path.display()))?;
        }
        None => io::stdout().write_all(picture.as_bytes())?,
    }
    Ok(())
}

/// A result file, with the reports in it.
struct ResultFile {
    path: PathBuf,
    reports: Vec<Report>,
}

fn read(path: &Path) -> Result<ResultFile> {
    let text = fs::read_to_string(path).map_err(|error| format!("reading {}: {error}", path.display()))?;
    let reports = report::parse(&text).or_else(|of_json| {
        nccl::parse(&text).map(|report| vec![report]).map_err(|of_table| {
            format!(
                "{} is no result file of this program ({of_json}), and no table of nccl-tests ({of_table})",
                path.display()
            )
        })
    })?;
    Ok(ResultFile { path: path.to_owned(), reports })
}
