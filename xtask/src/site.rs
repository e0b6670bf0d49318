//! `site`: the book and the reference as one site in `target/site`, to be put on any server or opened from the disk.
//!
//! `mscclpp-bench plot` draws the figures of the book from `docs/figures`. They are checked in, so that the pages show them
//! on the web as well. If mdBook is not installed, it is fetched from crates.io once and built into `target/tools`.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::error::{Error, FileContext};
use crate::run::{capture, cargo, run};
use crate::toolchain;
use crate::workspace;

/// The version of mdBook that is fetched. Another version in the search path is used as it is.
const MDBOOK: &str = "0.5.4";

/// The width of a figure in pixels: that of a column of text on a phone.
const WIDTH: &str = "420";

/// The packages that are left out of the reference, because they serve only this repository.
const LEFT_OUT: [&str; 7] = [
    "xtask",
    "mscclpp-bench",
    "mscclpp-bootstrap-simulation",
    "mscclpp-fake-hip",
    "mscclpp-fake-ib",
    "mscclpp-python",
    "mscclpp-test-support",
];

#[derive(Args)]
pub(crate) struct Options {
    /// Write no figure; fail if one that is checked in differs from that of its file.
    #[arg(long)]
    check: bool,

    /// Only draw the figures.
    #[arg(long)]
    figures: bool,
}

/// Runs the command.
pub(crate) fn run_command(options: &Options) -> Result<(), Error> {
    draw_figures(options.check)?;
    if options.figures {
        return Ok(());
    }
    let site = workspace::target().join("site");
    if site.exists() {
        std::fs::remove_dir_all(&site).context("remove", &site)?;
    }
    let book = workspace::root().join("docs");
    run(Command::new(mdbook()?).arg("build").arg(&book).arg("--dest-dir").arg(&site))?;
    build_reference(&site.join("reference"))?;
    for page in pages(&site)? {
        link_reference(&site, &page)?;
    }
    run(Command::new("python3").arg(book.join("check_site.py")).arg(&site))?;
    println!("the site is in {}", site.display());
    Ok(())
}

/// Draws each file in `docs/figures` as a picture in `docs/src/figures`.
fn draw_figures(check: bool) -> Result<(), Error> {
    let docs = workspace::root().join("docs");
    for file in workspace::files(&docs.join("figures"), "json")? {
        let name = PathBuf::from(workspace::name(&file)).with_extension("svg");
        let picture = docs.join("src/figures").join(name);
        let mut plot = cargo();
        plot.args(["run", "--quiet", "--package", "mscclpp-bench", "--", "plot", "--width", WIDTH])
            .arg(&file);
        let drawn = capture(&mut plot)?;
        let is_same = std::fs::read_to_string(&picture).is_ok_and(|present| present == drawn);
        match (is_same, check) {
            (true, _) => {}
            (false, true) => return Err(Error::StaleFigure(picture)),
            (false, false) => {
                std::fs::write(&picture, drawn).context("write", &picture)?;
                println!("drawn      {}", picture.display());
            }
        }
    }
    Ok(())
}

/// The mdBook of the search path, or one that is built once.
fn mdbook() -> Result<PathBuf, Error> {
    if let Some(program) = toolchain::program("mdbook") {
        return Ok(program);
    }
    let tools = workspace::target().join("tools");
    let program = tools.join("bin/mdbook");
    if !program.is_file() {
        println!("building mdbook {MDBOOK}, once");
        let mut install = cargo();
        install.args(["install", "--quiet", "--locked", "mdbook", "--version", MDBOOK, "--root"]).arg(&tools);
        // The build has a target folder of its own; otherwise it would use this workspace's.
        run(install.arg("--target-dir").arg(tools.join("build")))?;
    }
    Ok(program)
}

/// Builds rustdoc's pages, and a first page that lists the crates.
fn build_reference(folder: &Path) -> Result<(), Error> {
    let doc = workspace::target().join("doc");
    // Crates that were documented before would be listed as well.
    if doc.exists() {
        std::fs::remove_dir_all(&doc).context("remove", &doc)?;
    }
    // rustdoc links to crates whose folder exists, even to those that it documents later.
    let crates = crates()?;
    for (name, _) in &crates {
        workspace::create_folder(&doc.join(name))?;
    }
    let mut rustdoc = cargo();
    rustdoc.args(["doc", "--quiet", "--workspace", "--no-deps"]);
    rustdoc.args(LEFT_OUT.iter().flat_map(|package| ["--exclude", package]));
    run(rustdoc.env("RUSTDOCFLAGS", "-D warnings"))?;
    run(Command::new("cp").arg("-r").arg(&doc).arg(folder))?;
    let index = folder.join("index.html");
    std::fs::write(&index, reference_index(&crates)).context("write", &index)
}

/// The name of each documented crate, as rustdoc writes it, and its description.
fn crates() -> Result<Vec<(String, String)>, Error> {
    let metadata = capture(cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    let mut crates = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let is_left_out = package["name"].as_str().is_none_or(|name| LEFT_OUT.contains(&name));
        let libraries = package["targets"].as_array().into_iter().flatten();
        let kinds = ["lib", "rlib", "cdylib", "proc-macro"];
        let library =
            libraries.into_iter().find(|target| kinds.iter().any(|kind| target["kind"][0] == *kind));
        if let (false, Some(name)) = (is_left_out, library.and_then(|library| library["name"].as_str())) {
            let description = package["description"].as_str().unwrap_or_default();
            crates.push((name.replace('-', "_"), description.to_owned()));
        }
    }
    crates.sort();
    Ok(crates)
}

/// The first page of the reference, which loads no other files.
fn reference_index(crates: &[(String, String)]) -> String {
    let rows = crates.iter().map(|(name, description)| {
        let description = description.replace('&', "&amp;").replace('<', "&lt;");
        format!("<dt><a href=\"{name}/index.html\">{name}</a></dt><dd>{description}</dd>\n")
    });
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Reference: mscclpp for Rust</title>\n\
         <style>:root{{color-scheme:light dark}}body{{font:1rem/1.5 sans-serif;max-width:45rem;margin:2rem auto;padding:0 1rem}}\
         dt{{font-family:monospace;margin-top:.8rem}}dd{{margin-left:1.2rem}}</style></head>\n\
         <body><p><a href=\"../index.html\">The book</a></p><h1>Reference</h1>\n<dl>\n{}</dl></body></html>\n",
        rows.collect::<String>()
    )
}

/// The pages of the book, in the folder and below it.
fn pages(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut found = workspace::files(folder, "html")?;
    for path in workspace::entries(folder)? {
        if path.is_dir() && !path.ends_with("reference") {
            found.extend(pages(&path)?);
        }
    }
    Ok(found)
}

/// The element in which mdBook puts the buttons at the right of a page's bar.
const BAR: &str = "<div class=\"right-buttons\">";

/// Adds a link to the reference to a page's bar.
fn link_reference(site: &Path, page: &Path) -> Result<(), Error> {
    let text = workspace::read(page)?;
    let Some((before, after)) = text.split_once(BAR) else { return Ok(()) };
    let depth = page.strip_prefix(site).map_or(0, |path| path.components().count().saturating_sub(1));
    let link = format!(
        "{before}{BAR}<a class=\"to-reference\" href=\"{}reference/index.html\">Reference</a>{after}",
        "../".repeat(depth)
    );
    std::fs::write(page, link).context("write", page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crate_has_its_line() {
        let page = reference_index(&[("mscclpp".to_owned(), "R&D <fast>".to_owned())]);
        assert!(page.contains("<a href=\"mscclpp/index.html\">mscclpp</a></dt><dd>R&amp;D &lt;fast></dd>"));
    }

    #[test]
    fn crates_of_the_repository_alone_are_left_out() {
        let names: Vec<_> = crates().unwrap().into_iter().map(|(name, _)| name).collect();
        assert!(names.contains(&"mscclpp".to_owned()) && names.contains(&"mscclpp_kernels".to_owned()));
        assert!(
            !names.iter().any(|name| name.contains("test_support") || name.contains("bench")),
            "{names:?}"
        );
    }

    #[test]
    fn pages_in_folders_find_the_reference_above_them() {
        let site = tempfile::tempdir().unwrap();
        workspace::create_folder(&site.path().join("tutorials")).unwrap();
        let page = site.path().join("tutorials/a.html");
        std::fs::write(&page, format!("<body>{BAR}</div></body>")).unwrap();
        for page in pages(site.path()).unwrap() {
            link_reference(site.path(), &page).unwrap();
        }
        let text = std::fs::read_to_string(&page).unwrap();
        assert!(text.contains("href=\"../reference/index.html\">Reference</a></div>"), "{text}");
    }
}
