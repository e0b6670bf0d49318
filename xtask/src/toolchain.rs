//! Finds the compilers: those of a CUDA toolkit, or the pinned NVRTC, which is fetched once into `target/`.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;

use crate::error::{Error, FileContext};
use crate::run::{capture, run};
use crate::workspace;

/// The version of the NVRTC that compiled the PTX that is checked in.
const PINNED_VERSION: &str = "12.4.127";
/// The environment variable that names an NVRTC.
const NVRTC: &str = "MSCCLPP_NVRTC_SO";
const PINNED_PACKAGE: &str = "nvidia-cuda-nvrtc-cu12";

/// The SHA-256 of the package's wheel for each kind of machine.
const PINNED_WHEELS: [(&str, &str); 2] = [
    ("x86_64", "a178759ebb095827bd30ef56598ec182b85547f1508941a3d560eb7ea1fbf338"),
    ("aarch64", "0eedf14185e04b76aa05b1fea04133e59f465b6f960c0cbf4e37c3cb6b0ea198"),
];

/// The NVRTC that compiles, if `MSCCLPP_NVRTC_SO` names none.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NvrtcChoice {
    /// The NVRTC of a CUDA toolkit if it is the pinned version, otherwise the pinned one, fetched if needed.
    Auto,
    /// The pinned NVRTC, fetched if needed.
    Pinned,
    /// The NVRTC of a CUDA toolkit, in any version: its PTX may differ from the PTX that is checked in.
    Toolkit,
}

/// Finds and loads the NVRTC with which [`mscclpp_gpu::nvrtc`] compiles from now on, and prints its version.
pub(crate) fn require_nvrtc(choice: NvrtcChoice) -> Result<(), Error> {
    let path = nvrtc_path(choice)?;
    // SAFETY: this program has one thread.
    unsafe { std::env::set_var(NVRTC, path) };
    let description = mscclpp_gpu::nvrtc::description()?;
    println!("{description}");
    let version = description.rsplit(' ').next().unwrap_or_default();
    if !PINNED_VERSION.starts_with(&format!("{version}.")) {
        println!("note: the PTX that is checked in comes from NVRTC {PINNED_VERSION}; this one's may differ");
    }
    Ok(())
}

fn nvrtc_path(choice: NvrtcChoice) -> Result<PathBuf, Error> {
    if let Some(path) = std::env::var_os(NVRTC) {
        return Ok(path.into());
    }
    let in_toolkit = toolkit_nvrtc();
    match (choice, in_toolkit) {
        (NvrtcChoice::Toolkit, Some(path)) => Ok(path),
        (NvrtcChoice::Toolkit, None) => Err(Error::Missing {
            what: "NVRTC in a CUDA toolkit",
            advice: "set CUDA_HOME, or leave --nvrtc out to have the pinned one fetched",
        }),
        (NvrtcChoice::Auto, Some(path)) if is_pinned_version(&path) => Ok(path),
        (NvrtcChoice::Auto, Some(path)) => {
            println!(
                "note: {} is not NVRTC {PINNED_VERSION}; taking the pinned one (--nvrtc toolkit takes this)",
                path.display()
            );
            pinned_nvrtc()
        }
        (NvrtcChoice::Auto, None) | (NvrtcChoice::Pinned, _) => pinned_nvrtc(),
    }
}

/// The path of a program of a CUDA toolkit, or of the search path.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let in_toolkits = toolkits().into_iter().map(|toolkit| toolkit.join("bin"));
    let search_path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&search_path).collect::<Vec<_>>();
    in_toolkits.chain(in_path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// The ptxas of a CUDA toolkit or of the search path, if it is new enough to read the PTX of the pinned NVRTC.
pub(crate) fn ptxas() -> Result<Option<PathBuf>, Error> {
    let Some(ptxas) = program("ptxas") else {
        println!("no ptxas found: the PTX is not assembled");
        return Ok(None);
    };
    let version = capture(Command::new(&ptxas).arg("--version"))?;
    if release(&version) >= release(&format!("release {PINNED_VERSION}")) {
        return Ok(Some(ptxas));
    }
    println!("{} is older than the NVRTC: the PTX is not assembled", ptxas.display());
    Ok(None)
}

/// Finds "release MAJOR.MINOR" in a tool's text about its version.
fn release(text: &str) -> Option<(u32, u32)> {
    let (_, after) = text.split_once("release ")?;
    let mut numbers = after.split(|c: char| !c.is_ascii_digit()).map_while(|word| word.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

/// The folders in which a CUDA toolkit may be.
fn toolkits() -> Vec<PathBuf> {
    let named = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    named.chain([PathBuf::from("/usr/local/cuda")]).collect()
}

fn toolkit_nvrtc() -> Option<PathBuf> {
    let folders = toolkits().into_iter().flat_map(|toolkit| [toolkit.join("lib64"), toolkit.join("lib")]);
    folders.map(|folder| folder.join("libnvrtc.so")).find(|file| file.is_file())
}

/// Whether a library has the pinned version: the file behind its symbolic links has the whole version in its name.
fn is_pinned_version(library: &Path) -> bool {
    library.canonicalize().is_ok_and(|file| workspace::name(&file).ends_with(PINNED_VERSION))
}

/// The pinned NVRTC, fetched unless it is in `target/`. pip verifies its hash.
fn pinned_nvrtc() -> Result<PathBuf, Error> {
    let folder = workspace::target().join("nvrtc").join(PINNED_VERSION);
    let library = folder.join("nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
    if library.is_file() {
        return Ok(library);
    }
    let hash = pinned_hash()?;
    println!("fetching {PINNED_PACKAGE} {PINNED_VERSION} (24 MB), once");
    let scratch = workspace::target().join("nvrtc").join(format!("fetching-{}", std::process::id()));
    let unpacked = scratch.join("unpacked");
    workspace::create_folder(&unpacked)?;
    let requirements = scratch.join("requirements.txt");
    let text = format!("{PINNED_PACKAGE}=={PINNED_VERSION} --hash=sha256:{hash}\n");
    std::fs::write(&requirements, text).context("write", &requirements)?;
    run(Command::new("python3")
        .args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--require-hashes"])
        .args(["--no-deps", "--only-binary=:all:", "--dest"])
        .arg(&scratch)
        .arg("--requirement")
        .arg(&requirements))?;
    for wheel in workspace::files(&scratch, "whl")? {
        run(Command::new("python3").args(["-m", "zipfile", "--extract"]).arg(&wheel).arg(&unpacked))?;
    }
    // Renaming publishes the whole folder at once. If another build was faster, its copy is used.
    if let Err(source) = std::fs::rename(&unpacked, &folder)
        && !library.is_file()
    {
        return Err(Error::File { action: "rename", path: unpacked, source });
    }
    std::fs::remove_dir_all(&scratch).context("remove", &scratch)?;
    Ok(library)
}

fn pinned_hash() -> Result<&'static str, Error> {
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    let wheel = PINNED_WHEELS.iter().find(|(known, _)| os == "linux" && *known == arch);
    wheel.map(|(_, hash)| *hash).ok_or(Error::NotPinned { os, arch })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_found_in_what_tools_print() {
        assert_eq!(release("Cuda compilation tools, release 13.0, V13.0.88\nBuild"), Some((13, 0)));
        assert_eq!(release("release 12.4.127"), Some((12, 4)));
        assert_eq!(release("ptxas: command not found"), None);
        assert!(release("release 9.2") < release("release 12.4"));
    }
}
