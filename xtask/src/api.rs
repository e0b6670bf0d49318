//! `api`: lists the public items of each crate that users use, one per line, in `docs/api`, so that a review shows their changes.
//!
//! rustdoc writes a description of each crate as JSON. That output is unstable: a stable rustdoc writes it only if it is told
//! that it is part of a compiler's own build. The crate `public-api` converts the JSON into lines. Impls that the compiler
//! derives, or that hold for all types, are left out: they say little, and change with the version of Rust.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::Value;

use crate::error::{Error, FileContext};
use crate::run::{capture, cargo, run as run_program};
use crate::workspace;

/// The folder of the listings that are checked in.
const FOLDER: &str = "docs/api";

/// Published crates that only the other crates of the repository use, and whose API changes with theirs. The few of their
/// items that users name are re-exported by crates that are listed.
const INTERNAL: [&str; 5] =
    ["mscclpp-derive", "mscclpp-gpu-sys", "mscclpp-net", "mscclpp-os", "mscclpp-verbs-sys"];

/// The most lines of a difference that are shown for each crate.
const SHOWN: usize = 20;

#[derive(Args)]
pub(crate) struct Options {
    /// Write nothing; fail if a listing differs from the public items of the sources.
    #[arg(long)]
    check: bool,
}

/// A published library that users use.
#[derive(Debug, PartialEq, Eq)]
struct Library {
    package: String,
    /// The name that rustdoc gives its files.
    name: String,
    /// The features that docs.rs enables, beside the default ones.
    features: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), Error> {
    let metadata = capture(cargo().args(["metadata", "--format-version", "1", "--no-deps", "--locked"]))?;
    let libraries = published(&serde_json::from_str(&metadata)?);
    describe(&libraries)?;
    let folder = workspace::root().join(FOLDER);
    workspace::create_folder(&folder)?;
    let mut stale = Vec::new();
    for library in &libraries {
        let path = folder.join(format!("{}.txt", library.package));
        let present = std::fs::read_to_string(&path).unwrap_or_default();
        let listing = listing(&workspace::target().join(format!("doc/{}.json", library.name)))?;
        if present == listing {
            continue;
        }
        println!("{}:", library.package);
        difference(&present, &listing).iter().take(SHOWN).for_each(|line| println!("{line}"));
        if !options.check {
            std::fs::write(&path, listing).context("write", &path)?;
        }
        stale.push(library.package.clone());
    }
    println!("{} crates, {} of which offer something else than before", libraries.len(), stale.len());
    if options.check && !stale.is_empty() {
        return Err(Error::StaleApi(stale.join(", ")));
    }
    Ok(())
}

/// The published Rust libraries that users use, in the order of cargo's metadata.
fn published(metadata: &Value) -> Vec<Library> {
    let strings = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let library = |package: &Value| {
        let name = package["name"].as_str()?;
        // A package that must not be published has an empty list of registries.
        if package["publish"].as_array().is_some_and(Vec::is_empty) || INTERNAL.contains(&name) {
            return None;
        }
        let mut targets = package["targets"].as_array().into_iter().flatten();
        let target = targets.find(|target| {
            strings(&target["kind"]).iter().any(|kind| kind == "lib" || kind == "proc-macro")
        })?;
        Some(Library {
            package: name.to_owned(),
            name: target["name"].as_str()?.replace('-', "_"),
            features: strings(&package["metadata"]["docs"]["rs"]["features"]),
        })
    };
    metadata["packages"].as_array().into_iter().flatten().filter_map(library).collect()
}

/// Makes rustdoc write the JSON of all libraries into the folder `doc`.
fn describe(libraries: &[Library]) -> Result<(), Error> {
    let mut command = cargo();
    command.args(["doc", "--quiet", "--locked", "--no-deps", "--lib"]);
    for library in libraries {
        command.args(["--package", &library.package]);
        for feature in &library.features {
            command.args(["--features", &format!("{}/{feature}", library.package)]);
        }
    }
    // Only rustdoc gets the variable. Build scripts depend on it, so everything would be compiled again.
    command.env("RUSTDOC", rustdoc()?);
    command.env("RUSTDOCFLAGS", "-Z unstable-options --output-format json --cap-lints allow");
    run_program(&mut command)
}

/// Writes a script that runs rustdoc like in a build of the compiler, and returns its path.
fn rustdoc() -> Result<PathBuf, Error> {
    let folder = workspace::target().join("api");
    workspace::create_folder(&folder)?;
    let script = folder.join("rustdoc");
    let real = std::env::var("RUSTDOC").unwrap_or_else(|_| "rustdoc".into());
    let text = format!("#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec '{real}' \"$@\"\n");
    // The script is written only if it changes, because cargo takes a new script for a new rustdoc.
    if std::fs::read_to_string(&script).unwrap_or_default() != text {
        std::fs::write(&script, text).context("write", &script)?;
        let permissions = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&script, permissions).context("make executable", &script)?;
    }
    Ok(script)
}

/// The listing of a crate: one item per line.
fn listing(json: &Path) -> Result<String, Error> {
    let builder = public_api::Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true);
    let api =
        builder.build().map_err(|source| Error::Api { path: json.to_owned(), source: Box::new(source) })?;
    Ok(api.items().map(|item| format!("{item}\n")).collect())
}

/// The lines that only one of the two texts has.
fn difference(before: &str, after: &str) -> Vec<String> {
    let (old, new): (BTreeSet<_>, BTreeSet<_>) = (before.lines().collect(), after.lines().collect());
    let gone = old.difference(&new).map(|line| format!("- {line}"));
    gone.chain(new.difference(&old).map(|line| format!("+ {line}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_that_are_published_for_users_are_listed() {
        let metadata = serde_json::json!({"packages": [
            {"name": "a-b", "publish": null, "targets": [{"kind": ["lib"], "name": "a_b"}],
             "metadata": {"docs": {"rs": {"features": ["f"]}}}},
            {"name": "inner", "publish": [], "targets": [{"kind": ["lib"], "name": "inner"}], "metadata": null},
            {"name": "mscclpp-os", "publish": null, "targets": [{"kind": ["lib"], "name": "mscclpp_os"}], "metadata": null},
            {"name": "program", "publish": null, "targets": [{"kind": ["bin"], "name": "program"}], "metadata": null},
            {"name": "c", "publish": null, "targets": [{"kind": ["cdylib", "rlib"], "name": "c"}], "metadata": null},
        ]});
        let expected = Library { package: "a-b".into(), name: "a_b".into(), features: vec!["f".into()] };
        assert_eq!(published(&metadata), [expected]);
    }

    #[test]
    fn a_difference_has_what_went_and_what_came() {
        assert_eq!(difference("a\nb\n", "b\nc\n"), ["- a", "+ c"]);
        assert!(difference("a\n", "a\n").is_empty());
    }
}
