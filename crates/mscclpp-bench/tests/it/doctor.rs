//! Tests of `mscclpp-bench doctor` on simulated devices: text and JSON agree, and nothing that is missing is reported to
//! work. The findings about GPUs and adapters are tested if there are some.

use std::{fs, process::Command};

use libtest_mimic::{Failed, Trial};
use mscclpp_test_support::{LIMIT, child::output_within, namespaces::without_network};
use serde_json::Value;

use super::{compare::shared_library, program::program, trial};

const SECTIONS: [&str; 11] = [
    "platform",
    "devices",
    "exports",
    "peers",
    "gpu_direct",
    "rdma",
    "loopback",
    "network",
    "launcher",
    "compilers",
    "limits",
];
/// The sections that the text shows as tables.
const TABLES: [&str; 4] = ["exports", "peers", "gpu_direct", "loopback"];
/// Variables that hide everything except the CPU.
const NOTHING: [(&str, &str); 5] = [
    ("MSCCLPP_PLATFORM", "sim"),
    ("MSCCLPP_SIM_PEER_ACCESS", "none"),
    ("MSCCLPP_IBV_SO", "/nowhere/libibverbs.so.1"),
    ("MSCCLPP_NVRTC_SO", "/nowhere/libnvrtc.so.12"),
    ("MSCCLPP_CXX", "/nowhere/c++"),
];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("doctor::text_and_json_have_the_same_facts", text_and_json),
        trial("doctor::simulated_devices_are_found_and_tried", simulated_devices),
        trial("doctor::what_is_not_there_has_a_reason_and_a_remedy", nothing),
        trial("doctor::strict_is_an_exit_code", strict),
        trial("doctor::a_malformed_variable_is_named", malformed),
        trial("doctor::a_device_that_is_asked_for_and_not_there_is_a_problem", no_such_device),
        trial("doctor::no_network", no_network).with_ignored_flag(alone().is_none()),
        trial("doctor::a_launcher_is_understood", launcher),
        trial("doctor::the_nccl_of_a_python_environment_is_named", nccl).with_ignored_flag(!has_python()),
    ]
}

/// Runs the doctor, with no other variables of this project than these. Returns its output and exit code.
fn doctor(options: &[&str], environment: &[(&str, &str)]) -> Result<(String, Option<i32>), Failed> {
    let mut command = Command::new(program());
    for (name, _) in std::env::vars_os() {
        let ours = name.to_string_lossy().starts_with("MSCCLPP_");
        if ours && name != "MSCCLPP_CACHE_DIR" {
            command.env_remove(name);
        }
    }
    command.arg("doctor").args(options).envs(environment.iter().copied()).env("MSCCLPP_SIM_DEVICES", "3");
    let output = output_within(2 * LIMIT, &mut command);
    Ok((String::from_utf8(output.stdout)?, output.status.code()))
}

fn json(environment: &[(&str, &str)]) -> Result<Value, Failed> {
    let (text, code) = doctor(&["--json"], environment)?;
    assert_eq!(code, Some(0), "{text}");
    Ok(serde_json::from_str(&text)?)
}

fn findings<'a>(report: &'a Value, section: &str) -> &'a [Value] {
    report["sections"][section].as_array().map_or(&[], Vec::as_slice)
}

fn finding<'a>(report: &'a Value, section: &str, item: &str) -> Result<&'a Value, Failed> {
    let found = findings(report, section).iter().find(|finding| finding["item"] == item);
    Ok(found.ok_or_else(|| format!("no {item} in {:?}", findings(report, section)))?)
}

fn count(report: &Value, section: &str, status: &str) -> usize {
    findings(report, section).iter().filter(|finding| finding["status"] == status).count()
}

fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn text_and_json() -> Result<(), Failed> {
    for environment in [&NOTHING[..1], &NOTHING] {
        let (text, code) = doctor(&[], environment)?;
        assert_eq!(code, Some(0), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        let report = json(environment)?;
        let keys: Vec<_> = report["sections"].as_object().into_iter().flatten().map(|(key, _)| key).collect();
        assert_eq!(keys.len(), SECTIONS.len(), "{keys:?}");
        let mut problems = 0;
        let text = squeezed(&text);
        for section in SECTIONS {
            assert!(!findings(&report, section).is_empty(), "{section}");
            for finding in findings(&report, section) {
                let (mark, said) = match finding["status"].as_str() {
                    Some("ok") => ("ok", "text"),
                    Some("note") => ("", "text"),
                    Some("unavailable") => ("--", "reason"),
                    Some("problem") => ("!!", "reason"),
                    _ => return Err(format!("{finding}").into()),
                };
                problems += usize::from(mark == "!!");
                let field = |name: &str| finding[name].as_str().unwrap_or_default();
                assert!(!field("item").is_empty() && !field(said).is_empty(), "{finding}");
                if mark == "--" || mark == "!!" {
                    assert!(!field("remedy").is_empty(), "{finding}");
                    assert!(text.contains(&squeezed(field("remedy"))), "{finding}");
                    assert!(text.contains(&squeezed(field("reason"))), "{finding}");
                } else if !TABLES.contains(&section) && section != "devices" && section != "limits" {
                    // The free memory may differ from one run to the next.
                    let line = squeezed(&format!("{mark} {} {}", field("item"), field("text")));
                    assert!(text.contains(&line), "{line} in {text}");
                }
            }
        }
        assert_eq!(report["problems"], problems);
    }
    Ok(())
}

fn simulated_devices() -> Result<(), Failed> {
    let report = json(&NOTHING[..1])?;
    assert_eq!(finding(&report, "platform", "sim")?["facts"]["chosen"], true);
    assert_eq!(findings(&report, "devices").len(), 3);
    assert_eq!(finding(&report, "devices", "sim 2")?["facts"]["id"], 2);
    assert_eq!(count(&report, "peers", "ok"), 6);
    for finding in findings(&report, "peers") {
        assert!(finding["facts"]["gb_per_s"].as_f64() > Some(0.0), "{finding}");
    }
    for device in 0..3 {
        let by = |kind: &str| finding(&report, "exports", &format!("{kind} of {device}"));
        assert_eq!(by("file descriptor")?["status"], "ok");
        assert_eq!(by("fabric handle")?["status"], "unavailable");
        assert_eq!(by("legacy handle")?["status"], "unavailable");
    }
    assert!(findings(&report, "network").iter().any(|finding| finding["facts"]["offered"] == 0));
    Ok(())
}

fn nothing() -> Result<(), Failed> {
    let report = json(&NOTHING)?;
    assert_eq!(count(&report, "peers", "ok"), 0);
    assert_eq!(count(&report, "peers", "unavailable"), 6);
    assert_eq!(count(&report, "rdma", "ok") + count(&report, "loopback", "ok"), 0);
    assert_eq!(count(&report, "compilers", "ok") + count(&report, "gpu_direct", "ok"), 0);
    for (section, item, status, reason, remedy) in [
        ("rdma", "libibverbs", "unavailable", "/nowhere/libibverbs.so.1", "ibverbs-providers"),
        ("rdma", "IB0 to IB7", "unavailable", "library", "libibverbs"),
        ("peers", "0 to 1", "unavailable", "MSCCLPP_SIM_PEER_ACCESS", "Ethernet"),
        ("compilers", "C++", "problem", "/nowhere/c++", "g++"),
    ] {
        let finding = finding(&report, section, item)?;
        assert_eq!(finding["status"], status, "{finding}");
        let contains = |key: &str, part: &str| finding[key].as_str().is_some_and(|text| text.contains(part));
        assert!(contains("reason", reason) && contains("remedy", remedy), "{finding}");
    }
    let reason = finding(&report, "rdma", "libibverbs")?["reason"].as_str().unwrap_or_default();
    assert!(!reason.contains("install"), "the remedy says that: {reason}");
    Ok(())
}

fn strict() -> Result<(), Failed> {
    // Simulated devices need the compiler.
    assert_eq!(doctor(&["--strict"], &NOTHING)?.1, Some(1));
    let (text, code) = doctor(&["--strict"], &NOTHING[..4])?;
    let expected = if text.contains("No problems.") { 0 } else { 1 };
    assert_eq!(code, Some(expected), "{text}");
    Ok(())
}

fn malformed() -> Result<(), Failed> {
    for library in [&NOTHING[..1], &NOTHING] {
        let report = json(&[library, &[("MSCCLPP_HCA_DEVICES", "a,,b")]].concat())?;
        let choice = finding(&report, "rdma", "IB0 to IB7")?;
        assert_eq!(choice["status"], "problem", "{choice}");
        let reason = choice["reason"].as_str().unwrap_or_default();
        assert!(reason.contains("MSCCLPP_HCA_DEVICES=\"a,,b\""), "{reason}");
        assert_eq!(count(&report, "loopback", "ok"), 0);
    }
    for (section, variable, value) in [
        ("platform", "MSCCLPP_PLATFORM", "metal"),
        ("network", "MSCCLPP_SOCKET_FAMILY", "ipv4"),
        ("rdma", "MSCCLPP_IB_GID_INDEX", "best"),
    ] {
        let report = json(&[(variable, value)])?;
        let named = findings(&report, section).iter().find(|finding| {
            finding["status"] == "problem"
                && finding["reason"].as_str().is_some_and(|r| r.contains(variable) && r.contains(value))
        });
        assert!(named.is_some(), "{variable} in {:?}", findings(&report, section));
    }
    Ok(())
}

/// The doctor without a network.
fn alone() -> Option<Command> {
    let mut command = Command::new(program());
    without_network(command.args(["doctor", "--json"]).env("MSCCLPP_PLATFORM", "sim"))
}

/// In a new network namespace all interfaces are down.
fn no_network() -> Result<(), Failed> {
    let mut command = alone().ok_or("no network namespace")?;
    let report: Value = serde_json::from_slice(&output_within(2 * LIMIT, &mut command).stdout)?;
    let found = finding(&report, "network", "interfaces")?;
    assert_eq!(found["status"], "problem", "{found}");
    assert!(found.to_string().contains("ip link set lo up"), "{found}");
    Ok(())
}

fn no_such_device() -> Result<(), Failed> {
    let report = json(&[("MSCCLPP_PLATFORM", "sim"), ("MSCCLPP_HCA_DEVICES", "mlx5_77")])?;
    let choice = finding(&report, "rdma", "IB0 to IB7")?;
    assert_eq!(choice["status"], "problem", "{choice}");
    let with_library = finding(&report, "rdma", "libibverbs")?["status"] == "ok";
    let reason = choice["reason"].as_str().unwrap_or_default();
    assert!(!with_library || reason.contains("mlx5_77"), "{reason}");
    Ok(())
}

fn launcher() -> Result<(), Failed> {
    let job = [("MSCCLPP_RANK", "1"), ("MSCCLPP_N_RANKS", "4"), ("MSCCLPP_ADDRESS", "192.0.2.7:50505")];
    let report = json(&[&NOTHING[..1], &job].concat())?;
    let ranks = finding(&report, "launcher", "ranks")?;
    assert_eq!((&ranks["status"], &ranks["facts"]["rank"]), (&"ok".into(), &1.into()), "{ranks}");
    let report = json(&[&NOTHING[..1], &job[..1]].concat())?;
    assert_eq!(finding(&report, "launcher", "ranks")?["status"], "problem");
    Ok(())
}

fn has_python() -> bool {
    Command::new("python3").args(["-c", "import ctypes"]).output().is_ok_and(|output| output.status.success())
}

/// A folder of Python packages, whose `torch` opens the NCCL of a package by its path, as PyTorch does.
fn nccl() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    let write = |name: &str, text: &str| {
        fs::create_dir_all(at(name).parent().expect("a folder")).and_then(|()| fs::write(at(name), text))
    };
    let (theirs, ours) = ("nvidia/nccl/lib/libnccl.so.2", "mscclpp/lib/libnccl.so.2");
    write("nccl.cpp", "extern \"C\" int ncclGetVersion(int* version) { *version = 23007; return 0; }\n")?;
    write("ours.cpp", "#include \"nccl.cpp\"\nextern \"C\" int mscclppSimSetDevice(int) { return 0; }\n")?;
    write("torch/__init__.py", &format!("import ctypes\nctypes.CDLL({:?})\n", at(theirs)))?;
    write("jax/__init__.py", "")?;
    write("cupy/__init__.py", "raise ImportError('no GPU')\n")?;
    let compile = |source: &str, library: &str| -> Result<(), Failed> {
        fs::create_dir_all(at(library).parent().ok_or("a folder")?)?;
        Ok(shared_library(&at(source), &at(library), &["-Wl,-soname,libnccl.so.2"])?)
    };
    compile("nccl.cpp", theirs)?;
    let packages = folder.path().to_string_lossy().into_owned();
    let examine = |more: &[(&str, &str)]| -> Result<Value, Failed> {
        let environment = [&[("PYTHONPATH", packages.as_str())], more].concat();
        Ok(serde_json::from_str(&doctor(&["--nccl", "--json"], &environment)?.0)?)
    };
    let expect = |report: &Value, item: &str, status: &str, said: [&str; 2]| -> Result<(), Failed> {
        let finding = finding(report, "nccl", item)?;
        assert_eq!(finding["status"], status, "{finding}");
        assert!(said.iter().all(|said| finding.to_string().contains(said)), "{finding}");
        Ok(())
    };

    // The package of this project is not in the environment yet.
    let report = examine(&[("VLLM_NCCL_SO_PATH", "/nowhere/libnccl.so.2")])?;
    let install = "install the Python package mscclpp";
    expect(&report, "torch", "unavailable", ["NCCL 2.30.7, ", install])?;
    expect(&report, "torch", "unavailable", [theirs, "by its path"])?;
    expect(&report, "jax", "unavailable", ["at its first use", install])?;
    expect(&report, "cupy", "note", ["cannot be imported", "no GPU"])?;
    expect(&report, "VLLM_NCCL_SO_PATH", "problem", ["/nowhere/libnccl.so.2", "mscclpp.nccl.path()"])?;

    write("mscclpp/__init__.py", "")?;
    compile("ours.cpp", ours)?;
    let ours = format!("{packages}/{ours}");
    expect(&examine(&[])?, "torch", "unavailable", ["NCCL 2.30.7, ", "python -m mscclpp.nccl PROGRAM"])?;
    let report = examine(&[("LD_PRELOAD", &ours), ("VLLM_NCCL_SO_PATH", &ours)])?;
    for module in ["torch", "jax"] {
        expect(&report, module, "ok", ["mscclpp in place of NCCL 2.30.7, ", "LD_PRELOAD names it"])?;
    }
    expect(&report, "VLLM_NCCL_SO_PATH", "ok", ["vLLM calls mscclpp in place of NCCL", &ours])?;
    write("mscclpp/nccl.py", &format!("import ctypes\nctypes.CDLL({ours:?}, ctypes.RTLD_GLOBAL)\n"))?;
    write("sitecustomize.py", "import mscclpp.nccl\n")?;
    expect(&examine(&[])?, "torch", "ok", [&ours, "mscclpp.nccl was imported first"])
}
