//! What a run adds to the machine's files: the first process, the command, the programs.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use super::archive::Archive;
use super::image::Image;
use crate::error::{Error, FileContext};

/// Writes the archive that a machine boots with to `path`: the image's files, followed by those of this run.
pub(super) fn write(path: &Path, image: &Image, command: &str) -> Result<(), Error> {
    let mut archive = Archive::default();
    archive.file("init", 0o755, include_bytes!("init.sh"));
    archive.file("usr/bin/memlock", 0o755, include_bytes!("memlock.sh"));
    archive.folder("programs", 0o755);
    archive.folder("kernels", 0o700);
    archive.file("command", 0o644, command.as_bytes());

    let mut to = File::create(path).context("write", path)?;
    let mut from = File::open(&image.files).context("read", &image.files)?;
    std::io::copy(&mut from, &mut to).context("write", path)?;
    to.write_all(&archive.finish()).context("write", path)
}
