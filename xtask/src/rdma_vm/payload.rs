//! The files that a run adds to the machine's: the first process, the programs and their kernels, the command.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::archive::Archive;
use super::image::Image;
use crate::dist::{Binary, Kind};
use crate::error::{Error, FileContext};
use crate::workspace;

/// The files and the command of a run.
pub(super) struct Payload {
    /// Programs, which are put into the search path by their file names.
    pub(super) programs: BTreeSet<Binary>,
    /// Compiled kernels.
    pub(super) kernels: Vec<PathBuf>,
    /// The environment of the command, each `NAME=VALUE`.
    pub(super) environment: Vec<String>,
    /// A script for the shell.
    pub(super) command: String,
}

impl Payload {
    /// Writes the archive with which a machine boots to `path`: the image's files, followed by those of this run.
    pub(super) fn write(&self, path: &Path, image: &Image) -> Result<(), Error> {
        let mut archive = Archive::default();
        archive.file("init", 0o755, include_bytes!("init.sh"));
        archive.file("usr/bin/memlock", 0o755, include_bytes!("memlock.sh"));
        archive.folder("programs", 0o755);
        for program in &self.programs {
            let content = std::fs::read(&program.path).context("read", &program.path)?;
            archive.file(&format!("programs/{}", program.file_name()), 0o755, &content);
        }
        archive.folder("kernels", 0o700);
        for kernel in &self.kernels {
            let content = std::fs::read(kernel).context("read", kernel)?;
            archive.file(&format!("kernels/{}", workspace::name(kernel)), 0o600, &content);
        }
        archive.file("command", 0o644, self.script().as_bytes());

        let mut to = File::create(path).context("write", path)?;
        let mut from = File::open(&image.files).context("read", &image.files)?;
        std::io::copy(&mut from, &mut to).context("write", path)?;
        to.write_all(&archive.finish()).context("write", path)
    }

    fn script(&self) -> String {
        let set = |variable: &String| {
            let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
            format!("export {name}={}\n", quoted(value))
        };
        self.environment.iter().map(set).chain([self.command.clone()]).collect()
    }
}

/// A script that runs each test program among `programs` with `arguments`, and fails if one of them does.
pub(super) fn run_tests(programs: &BTreeSet<Binary>, arguments: &[String]) -> String {
    let arguments: String = arguments.iter().map(|argument| format!(" {}", quoted(argument))).collect();
    let tests = programs.iter().filter(|program| program.kind == Kind::Test);
    let runs = tests.map(|test| run_test(&test.file_name(), &arguments));
    format!(
        "failed=\n{}[ -z \"$failed\" ] || {{ echo \"failed:$failed\"; exit 1; }}\n",
        runs.collect::<String>()
    )
}

fn run_test(name: &str, arguments: &str) -> String {
    format!(
        "echo '=== {name}'\n{name}{arguments} || {{ echo \"=== {name} failed with $?\"; failed=\"$failed {name}\"; }}\n"
    )
}

/// Quotes a word, so that the shell does not change it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_takes_words_as_they_are() {
        let payload = Payload {
            programs: BTreeSet::new(),
            kernels: Vec::new(),
            environment: vec!["GREETING=it's $HOME".to_owned()],
            command: "printf %s \"$GREETING\"".to_owned(),
        };
        let output = std::process::Command::new("sh").args(["-c", &payload.script()]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "it's $HOME");
    }

    #[test]
    fn one_test_that_fails_lets_the_others_run_and_the_script_fail() {
        let script =
            format!("failed=\n{}{}[ -z \"$failed\" ]", run_test("false", ""), run_test("echo", " ran"));
        let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "=== false\n=== false failed with 1\n=== echo\nran\n"
        );
        assert!(!output.status.success());
    }
}
