//! Environment variables. Each value is tried in a process of its own.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use libtest_mimic::{Failed, Trial};
use mscclpp_gpu::{KernelArgs, KernelSource, LaunchConfig, Module, Platform, store_for_sim};
use mscclpp_test_support::{
    Child, LIMIT,
    child::{as_child, output_within, this_program},
    trials, until,
};

pub(crate) fn trials() -> Vec<Trial> {
    trials![
        eight_devices_are_simulated_unless_more_are_asked_for,
        malformed_device_counts_are_named,
        the_named_platform_is_taken,
        malformed_platforms_are_named,
        a_platform_that_cannot_be_used_is_never_replaced,
        a_device_has_the_same_uuid_everywhere,
        devices_reach_each_other_unless_told_otherwise,
        without_a_compiler_the_cache_will_do,
        a_kernel_in_the_cache_needs_no_compiler,
        killed_while_compiling,
    ]
}

/// A kernel that only these tests use.
const SOURCE: KernelSource<'_> =
    KernelSource::new("beforehand.cu", "extern \"C\" __global__ void made_beforehand(int* p) { *p = 7; }\n");

/// Returns the library's answer to a question, in the other process.
pub(crate) fn answer(question: &str) -> String {
    let said = match question {
        "count" => Platform::Sim.device_count().map(|n| n.to_string()),
        "detect" => Platform::detect().map(|p| p.to_string()),
        "detect_or_sim" => Platform::detect_or_sim().map(|p| p.to_string()),
        "last" => Platform::Sim.gpus().map(|all| {
            let last = all.last().expect("at least one").properties().clone();
            format!("{} {}", last.name, String::from_utf8_lossy(&last.uuid))
        }),
        "one_too_many" => {
            Platform::Sim.device_count().and_then(|n| Platform::Sim.gpu(n)).map(|gpu| gpu.to_string())
        }
        "peer_access" => Platform::Sim.gpus().and_then(|gpus| {
            let access = [gpus[0].peer_access(&gpus[0])?, gpus[0].peer_access(&gpus[1])?];
            Ok(format!("{:?}", access.map(|access| access.reachable)))
        }),
        "use_of_a_peer" => Platform::Sim.gpus().and_then(|gpus| {
            let [own, theirs] = [gpus[0].allocate(8)?, gpus[1].allocate(8)?];
            // SAFETY: live allocations of those devices.
            unsafe {
                gpus[0].enable_access(&gpus[0], own.ptr(), 8)?;
                gpus[0].enable_access(&gpus[1], theirs.ptr(), 8)?;
            }
            Ok("reached".to_owned())
        }),
        "kernel" => Platform::Sim.gpu(0).and_then(|gpu| {
            let kernel = Module::load(&gpu, &SOURCE)?.kernel("made_beforehand")?;
            let (stream, word) = (gpu.stream()?, gpu.allocate(4)?);
            // SAFETY: the argument is that of the kernel, and is waited for.
            unsafe { kernel.launch(&stream, LaunchConfig::linear(1, 1), &KernelArgs::new().with(&word))? };
            stream.synchronize_timeout(LIMIT)?;
            let mut bytes = [0; 4];
            word.read(0, &mut bytes)?;
            Ok(format!("it stored {}", u32::from_ne_bytes(bytes)))
        }),
        _ => panic!("no such question: {question}"),
    };
    said.unwrap_or_else(|error| format!("error: {error}"))
}

fn ask(question: &str, variables: &[(&str, &str)]) -> Result<String, Failed> {
    let mut program = as_child(&["environment", question]);
    for variable in ["MSCCLPP_PLATFORM", "MSCCLPP_SIM_DEVICES", "MSCCLPP_SIM_PEER_ACCESS"] {
        program.env_remove(variable);
    }
    let output = output_within(LIMIT, program.envs(variables.iter().copied()));
    if !output.status.success() {
        return Err(
            format!("{question} with {variables:?}: {}", String::from_utf8_lossy(&output.stderr)).into()
        );
    }
    Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
}

fn expect(question: &str, variables: &[(&str, &str)], answer: &str) -> Result<(), Failed> {
    let said = ask(question, variables)?;
    if said != answer {
        return Err(format!("{question} with {variables:?}: {said:?} instead of {answer:?}").into());
    }
    Ok(())
}

fn eight_devices_are_simulated_unless_more_are_asked_for() -> Result<(), Failed> {
    expect("count", &[], "8")?;
    expect("count", &[("MSCCLPP_SIM_DEVICES", "")], "8")?;
    expect("count", &[("MSCCLPP_SIM_DEVICES", "3")], "3")?;
    expect("count", &[("MSCCLPP_SIM_DEVICES", "1024")], "1024")?;
    expect("one_too_many", &[("MSCCLPP_SIM_DEVICES", "3")], "error: there is no sim device 3: 3 found")
}

fn malformed_device_counts_are_named() -> Result<(), Failed> {
    for value in ["0", "1025", "-1", "many", "1e2", "99999999999999999999"] {
        let error =
            format!("error: MSCCLPP_SIM_DEVICES={value:?} is not valid: a number of devices, 1 to 1024");
        expect("count", &[("MSCCLPP_SIM_DEVICES", value)], &error)?;
        expect("one_too_many", &[("MSCCLPP_SIM_DEVICES", value)], &error)?;
    }
    Ok(())
}

fn the_named_platform_is_taken() -> Result<(), Failed> {
    for value in ["sim", "SIM", "Sim"] {
        expect("detect", &[("MSCCLPP_PLATFORM", value)], "sim")?;
        expect("detect_or_sim", &[("MSCCLPP_PLATFORM", value)], "sim")?;
    }
    Ok(())
}

fn malformed_platforms_are_named() -> Result<(), Failed> {
    let error = "error: MSCCLPP_PLATFORM=\"cpu\" is not valid: cuda, hip or sim";
    expect("detect", &[("MSCCLPP_PLATFORM", "cpu")], error)?;
    expect("detect_or_sim", &[("MSCCLPP_PLATFORM", "cpu")], error)
}

fn a_platform_that_cannot_be_used_is_never_replaced() -> Result<(), Failed> {
    let is_missing = [("cuda", !cfg!(feature = "cuda")), ("hip", !cfg!(feature = "hip"))];
    for (platform, _) in is_missing.into_iter().filter(|(_, missing)| *missing) {
        for question in ["detect", "detect_or_sim"] {
            let said = ask(question, &[("MSCCLPP_PLATFORM", platform)])?;
            if !said.starts_with(&format!("error: platform {platform} is not usable here: ")) {
                return Err(format!("{question} of {platform}: {said:?}").into());
            }
        }
    }
    // By default the simulation is used only by functions that allow it.
    if !cfg!(any(feature = "cuda", feature = "hip")) {
        let said = ask("detect", &[])?;
        if !said.starts_with("error: platform cuda is not usable here: ") {
            return Err(format!("detect took something else than CUDA: {said:?}").into());
        }
        if !said.contains("set MSCCLPP_PLATFORM=sim") {
            return Err(format!("detect does not say how to run without a GPU: {said:?}").into());
        }
    }
    Ok(())
}

fn a_device_has_the_same_uuid_everywhere() -> Result<(), Failed> {
    expect("last", &[("MSCCLPP_SIM_DEVICES", "1")], "sim mscclpp-sim-0000")?;
    expect("last", &[("MSCCLPP_SIM_DEVICES", "32")], "sim mscclpp-sim-001f")?;
    expect("last", &[("MSCCLPP_SIM_DEVICES", "1024")], "sim mscclpp-sim-03ff")
}

fn devices_reach_each_other_unless_told_otherwise() -> Result<(), Failed> {
    for variables in [&[][..], &[("MSCCLPP_SIM_PEER_ACCESS", "all")]] {
        expect("peer_access", variables, "[true, true]")?;
        expect("use_of_a_peer", variables, "reached")?;
    }
    let none = [("MSCCLPP_SIM_PEER_ACCESS", "none")];
    expect("peer_access", &none, "[true, false]")?;
    expect(
        "use_of_a_peer",
        &none,
        "error: sim device 0 (sim) cannot access the memory of sim device 1 (sim): MSCCLPP_SIM_PEER_ACCESS=none keeps \
         simulated devices from each other's memory",
    )?;
    let error = "error: MSCCLPP_SIM_PEER_ACCESS=\"some\" is not valid: all or none";
    expect("peer_access", &[("MSCCLPP_SIM_PEER_ACCESS", "some")], error)
}

fn without_a_compiler_the_cache_will_do() -> Result<(), Failed> {
    let cache = tempfile::tempdir()?;
    let folder = cache.path().to_str().expect("the path of a temporary folder");
    let variables = [("MSCCLPP_CXX", "/nowhere/c++"), ("MSCCLPP_CACHE_DIR", folder)];
    let said = ask("kernel", &variables)?;
    if !said.contains("none runs here (/nowhere/c++: ") {
        return Err(format!("without a compiler and with an empty cache: {said:?}").into());
    }
    let path = store_for_sim(cache.path(), &SOURCE)?;
    expect("kernel", &variables, "it stored 7")?;
    fs::remove_file(path)?;
    if ask("kernel", &variables)? != said {
        return Err("the kernel did not come from the cache".into());
    }
    Ok(())
}

/// A kernel that was compiled here stays usable without the compiler, which is not even asked for its version.
fn a_kernel_in_the_cache_needs_no_compiler() -> Result<(), Failed> {
    let cache = tempfile::tempdir()?;
    let folder = cache.path().to_str().expect("the path of a temporary folder");
    expect("kernel", &[("MSCCLPP_CACHE_DIR", folder)], "it stored 7")?;
    let nowhere = [("MSCCLPP_CXX", "/nowhere/c++"), ("PATH", ""), ("MSCCLPP_CACHE_DIR", folder)];
    expect("kernel", &nowhere, "it stored 7")?;
    let note = cache.path().join("was-run");
    let compiler = compiler(cache.path(), &format!(": > '{}'\nexit 1", note.display()))?;
    expect("kernel", &[("MSCCLPP_CXX", &compiler), ("MSCCLPP_CACHE_DIR", folder)], "it stored 7")?;
    if note.exists() {
        return Err("the compiler was run".into());
    }
    Ok(())
}

/// Makes a compiler that does what a shell is told, and returns its path.
fn compiler(within: &Path, script: &str) -> Result<String, Failed> {
    let path = within.join("c++");
    fs::write(&path, format!("#!/bin/sh\n{script}\n"))?;
    fs::set_permissions(&path, PermissionsExt::from_mode(0o700))?;
    Ok(path.to_str().expect("the path of a temporary file").to_owned())
}

/// The next process removes the folder in which a process that was killed was compiling a kernel.
fn killed_while_compiling() -> Result<(), Failed> {
    let (here, temporary) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let folders = || -> Vec<_> {
        let entries = fs::read_dir(temporary.path()).expect("a folder");
        entries.map(|entry| entry.expect("an entry").path()).collect()
    };
    let begun = here.path().join("begun");
    // The compiler lives on when its process is killed, until the folder is gone.
    let script = format!(
        "test \"$1\" = --version && exit\n: > '{}'\nwhile test -e \"$PWD\"; do sleep 0.1; done",
        begun.display()
    );
    let compiler = compiler(here.path(), &script)?;
    let [cache, temporary] = [here.path(), temporary.path()].map(|path| path.to_str().expect("UTF-8"));
    let variables = [("MSCCLPP_CACHE_DIR", cache), ("TMPDIR", temporary)];
    let mut program = this_program();
    program.envs(variables).env("MSCCLPP_CXX", &compiler);
    let mut killed = Child::start_by(program, &["environment", "kernel"]);
    until("the compiler to begin", || begun.exists());
    killed.kill();
    let left = folders();
    if !matches!(left.as_slice(), [folder] if folder.is_dir()) {
        return Err(format!("one folder was expected: {left:?}").into());
    }
    expect("kernel", &variables, "it stored 7")?;
    let left = folders();
    if !left.is_empty() {
        return Err(format!("{left:?} stays").into());
    }
    Ok(())
}
