//! Tests over Ethernet, and of jobs of several processes.

use libtest_mimic::Failed;

use super::runs::{by_hand, column, report, run, said_beside_rows, variants, words};

/// Data goes from host to host and from device to device, in one part and in several, of which some are empty.
pub(crate) fn ethernet_bw() -> Result<(), Failed> {
    for (where_to, devices, variant) in [("", 0, "host to host"), ("--device-memory", 2, "GPU to GPU")] {
        let arguments = "-b 1 -e 70001 -f 70000 --connections 1,3 --iters 3 --repeats 2";
        let report = report(format!("ethernet-bw {where_to} {arguments}"))?;
        let of_a_size = ["plain socket".to_owned(), format!("{variant} x1"), format!("{variant} x3")];
        assert_eq!(variants(&report), [&of_a_size[..], &of_a_size, &of_a_size].concat());
        assert_eq!(column(&report, "size"), [[1; 3], [70000; 3], [70001; 3]].concat());
        assert_eq!(report["machine"]["platform"] == "cpu", devices == 0);
        assert_eq!(report["machine"]["devices"].as_array().map(Vec::len), Some(devices));
        let rows = &report["rows"];
        assert!(rows[0]["baseline"].is_null() && rows[1]["goal"].is_null(), "{rows}");
        assert_eq!(rows[1]["baseline"], rows[0]["times"]["median"]);
        assert!(rows[7]["cpu"]["receiver"].as_f64() > Some(0.0), "{rows}");
        let notes = report["notes"].to_string();
        assert!(
            notes.contains("70000 B: ") && notes.contains("% of the plain socket's bandwidth"),
            "{notes}"
        );
    }
    let report = report("ethernet-bw --iters 1 --repeats 1 --warmup 0")?;
    assert_eq!(column(&report, "size"), [64 << 20; 2]);
    let row = &report["rows"][1];
    let (baseline, goal) = (row["baseline"].as_f64().unwrap_or(0.0), row["goal"].as_f64().unwrap_or(0.0));
    assert!((goal * 0.9 / baseline - 1.0).abs() < 1e-9, "90 % of the plain socket's bandwidth: {row}");
    Ok(())
}

pub(crate) fn bootstrap() -> Result<(), Failed> {
    let report = report("bootstrap --ranks 1,5 --repeats 2")?;
    assert_eq!(variants(&report).len(), 8);
    Ok(())
}

/// Two calls of the program run as on two nodes: rank 0 has the results, rank 1 prints nothing.
pub(crate) fn ranks_by_hand() -> Result<(), Failed> {
    let short: &[&str] = &["--iters", "2", "--repeats", "1"];
    for (workload, more) in [
        ("signal-pingpong", &["--gpu", "1"][..]),
        ("memory-put", &[]),
        ("port-put", &["--transport", "ethernet"]),
        ("ethernet-bw", &["-b", "1K", "-e", "64K"]),
    ] {
        let [first, second] = by_hand(|rank, address| {
            let whose = ["--rank", ["0", "1"][rank], "--address", address];
            run(&[&[workload], &whose[..], short, more].concat())
        });
        assert!(first.status.success() && second.status.success(), "{workload}: {first:?} {second:?}");
        let table = String::from_utf8_lossy(&first.stdout);
        let mut rows = table.lines().filter(|line| !line.starts_with('#')).peekable();
        assert!(rows.peek().is_some() && rows.all(|row| row.ends_with("ok")), "{workload}: {table}");
        assert!(second.stdout.is_empty() && second.stderr.is_empty(), "{workload}: {second:?}");
    }
    Ok(())
}

/// Both ranks name their arguments, without those that differ between ranks or have their default.
pub(crate) fn ranks_that_differ() -> Result<(), Failed> {
    for calls in [
        ["memory-put --iters 5", "memory-put --iters 7"],
        ["memory-put", "port-put"],
        // This workload has another default of an option.
        ["tune", "tune --repeats 7"],
        ["ethernet-bw --begin 1K", "ll8-pingpong --threads 7"],
    ] {
        let outputs = by_hand(|rank, address| {
            let own = ["--rank", ["0", "1"][rank], "--address", address, "--warmup", "1"];
            run(&[&words(calls[rank])[..], &own].concat())
        });
        for (rank, output) in outputs.iter().enumerate() {
            let other = 1 - rank;
            let expected = format!(
                "error: rank {other} was started with {:?}, this rank with {:?}: start all with the same workload and \
                 options\n",
                calls[other], calls[rank]
            );
            assert_eq!(said_beside_rows(&output.stderr), expected);
            assert_eq!((output.status.code(), &output.stdout[..]), (Some(1), &b""[..]));
        }
    }
    Ok(())
}
