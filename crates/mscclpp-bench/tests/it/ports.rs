//! Tests of port channels, launches and FIFOs.

use libtest_mimic::Failed;

use super::runs::{ODD, column, notes, report, run, variants};

/// Small sizes are put by a thread itself and larger ones by the proxy, over both transports, in one launch and in many.
pub(crate) fn port_put() -> Result<(), Failed> {
    for (more, variant) in [
        ("--bulk-put-max 0", "launches"),
        ("--in-kernel --bulk-put-max 5000", "in kernel"),
        ("--in-kernel --transport ethernet --staging 4K,2 --checksums", "in kernel"),
        ("--direct-put-max 0 --fifo-size 2", "launches"),
    ] {
        let report = report(format!("port-put {ODD} {more}"))?;
        assert_eq!(variants(&report), [variant; 3]);
        assert_eq!(column(&report, "size"), [1, 71, 5001]);
        // There are a warm-up and two repeats of three rounds.
        let large = notes(&report).into_iter().find(|note| note.starts_with("5001 B: "));
        assert!(large.is_some_and(|note| note.contains(" and 9 puts, ")), "{report}");
    }
    // There are more rounds than a graph has launches.
    let long = report("port-put -b 8 -e 8 --iters 2003 --warmup 0 --repeats 1")?;
    assert_eq!(column(&long, "rounds"), [2003]);
    Ok(())
}

pub(crate) fn port_pingpong() -> Result<(), Failed> {
    for more in ["--bulk-put-max 8999", "--transport ethernet --busy-poll 20"] {
        there_and_back("port-pingpong", more, 4, 15)?;
    }
    Ok(())
}

pub(crate) fn port_packet_pingpong() -> Result<(), Failed> {
    // The flags of packets show that they have arrived, so there are no signals.
    there_and_back("port-packet-pingpong", "--bulk-put-max 0", 8, 0)
}

fn there_and_back(workload: &str, more: &str, element: u64, signals: usize) -> Result<(), Failed> {
    let one = report(format!("{workload} --iters 10 --repeats 2 {more}"))?;
    assert_eq!(column(&one, "size"), [element]);
    let sizes = "-b 8 -e 9000 -f 100 --iters 5 --repeats 2 --threads 7";
    let many = report(format!("{workload} {sizes} {more}"))?;
    assert_eq!(column(&many, "size"), [8, 800, 9000]);
    assert_eq!(variants(&many), ["1x7"; 3]);
    let large = notes(&many).into_iter().find(|note| note.starts_with("9000 B: "));
    let expected = format!(" and 15 puts, {signals} signals ");
    assert!(large.is_some_and(|note| note.contains(&expected)), "{many}");
    Ok(())
}

pub(crate) fn launches() -> Result<(), Failed> {
    let report = report("launches --iters 20 --repeats 3 --warmup 1")?;
    let (variants, bare) = (variants(&report), "bare cuLaunchKernel");
    assert!(
        variants.contains(&"values, own stream") && variants.contains(&"objects, own capture"),
        "{variants:?}"
    );
    assert_eq!(variants.contains(&bare), report["machine"]["platform"] == "cuda");
    let spoiled = run(&["launches", "--iters", "5", "--repeats", "1", "--spoil"]);
    assert!(!spoiled.status.success() && String::from_utf8_lossy(&spoiled.stdout).contains("FAILED"));
    Ok(())
}

pub(crate) fn fifo() -> Result<(), Failed> {
    // Under the race detector each trigger takes longer.
    let looks_for_races = std::env::var_os("MSCCLPP_SIM_RACES").is_some_and(|value| value == "1");
    let iters = if looks_for_races { "1" } else { "2" };
    let report = report(format!("fifo --threads 1,5,1024 --iters {iters} --repeats 2 --fifo-size 4"))?;
    assert_eq!(variants(&report), [["push and sync"; 3], ["pipelined"; 3]].concat());
    assert_eq!(column(&report, "size"), [1, 5, 1024, 1, 5, 1024]);
    assert_eq!(notes(&report).iter().filter(|note| note.contains("million triggers a second")).count(), 6);
    Ok(())
}

pub(crate) fn proxy_idle() -> Result<(), Failed> {
    let report = report("proxy-idle --idle 20 --window 20 --repeats 2")?;
    assert_eq!(variants(&report), ["core time a second", "first trigger"]);
    Ok(())
}
