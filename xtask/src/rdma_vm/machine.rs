//! A running virtual machine: its start, its output and its end.
//!
//! It has three serial lines. The first is the kernel's log, kept in a file. The second has the output of the command. On the
//! third, `init.sh` reports its progress: `up`, and `exit CODE`.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::image::Image;
use super::pinning;
use crate::error::{Error, FileContext};

/// The way in which the machine's instructions are executed, as qemu calls it: by the processor itself, through the kernel's
/// KVM, if that can be used; otherwise by qemu's emulation, which needs nothing and is about ten times slower.
fn accelerator() -> &'static str {
    if kvm_works() { "kvm" } else { "tcg" }
}

/// Whether the processor can run a virtual machine and this user may use it. On some machines with a `/dev/kvm` the processor
/// cannot boot any virtual machine.
fn kvm_works() -> bool {
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = processor.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let is_able = flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm");
    is_able && OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok()
}

/// The settings that all machines of a run share.
pub(super) struct Setup<'a> {
    pub(super) image: &'a Image,
    /// The archive with everything: the image's files and those of this run.
    pub(super) files: &'a Path,
    pub(super) nodes: u32,
    pub(super) memory_mib: u32,
    /// The time limit of the run. Without it, a machine that prints nothing for [`MOST_SILENCE`] is ended.
    pub(super) limit: Option<Duration>,
    /// Whether each processor of the machine gets a core of its own.
    pub(super) is_pinned: bool,
    /// The folder for the machines' serial lines and the sockets of their networks.
    pub(super) scratch: &'a Path,
    /// The folder in which the kernels' logs are kept.
    pub(super) logs: &'a Path,
}

/// A running machine. Dropping it ends it.
pub(super) struct Machine {
    node: u32,
    qemu: Child,
    status: PathBuf,
    log: PathBuf,
    output: Option<JoinHandle<()>>,
    /// The time when it was started, or last printed a line.
    heard: Arc<Mutex<Instant>>,
}

/// The progress of a machine.
#[derive(Debug, PartialEq, Eq)]
enum Status {
    Booting,
    Running,
    Ended(u8),
}

impl Machine {
    /// Starts the machine `node`.
    fn start(setup: &Setup<'_>, node: u32) -> Result<Self, Error> {
        let status = setup.scratch.join(format!("status-{node}"));
        let log = setup.logs.join(format!("kernel-{node}.log"));
        // qemu appends to the file of a previous run if there is one.
        std::fs::write(&log, "").context("write", &log)?;
        let mut qemu = Command::new("qemu-system-x86_64");
        // Names are relative to this folder: names of sockets must be short, and no name may have a comma.
        qemu.current_dir(setup.scratch);
        qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-smp", "2"]);
        // qemu gives its threads names, by which they are pinned.
        qemu.args(["-name", "rdma-vm,debug-threads=on"]);
        let accelerator = accelerator();
        qemu.args(["-accel", accelerator]).args(["-cpu", if accelerator == "kvm" { "host" } else { "max" }]);
        qemu.args(["-m", &setup.memory_mib.to_string()]);
        qemu.arg("-kernel").arg(&setup.image.kernel).arg("-initrd").arg(setup.files);
        qemu.args(["-append", &kernel_arguments(setup, node)]);
        qemu.args(["-chardev", &format!("file,id=log,path=log-{node}"), "-serial", "chardev:log"]);
        qemu.args(["-chardev", "stdio,id=output,signal=off", "-serial", "chardev:output"]);
        qemu.args(["-chardev", &format!("file,id=status,path=status-{node}"), "-serial", "chardev:status"]);
        qemu.args(["-device", "virtio-rng-pci"]);
        if setup.nodes > 1 {
            qemu.args(network_arguments(node));
        }
        let link = setup.scratch.join(format!("log-{node}"));
        std::os::unix::fs::symlink(&log, &link).context("make the link", &link)?;
        qemu.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut qemu = qemu.spawn().map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => Error::Missing {
                what: "qemu-system-x86_64",
                advice: "install it (Debian and Ubuntu: `apt-get install --no-install-recommends qemu-system-x86`)",
            },
            _ => Error::Start { program: "qemu-system-x86_64".to_owned(), source },
        })?;
        let output = qemu.stdout.take().expect("asked for above");
        let prefix = if setup.nodes > 1 { format!("[node {node}] ") } else { String::new() };
        let heard = Arc::new(Mutex::new(Instant::now()));
        let output = std::thread::spawn({
            let heard = Arc::clone(&heard);
            move || copy_lines(BufReader::new(output), &prefix, &heard)
        });
        Ok(Self { node, qemu, status, log, output: Some(output), heard })
    }

    /// The progress of the machine; an error if it ended without reporting an exit code.
    fn status(&mut self) -> Result<Status, Error> {
        let has_ended = self.qemu.try_wait().context("wait for qemu of", &self.log)?;
        let status = status(&std::fs::read_to_string(&self.status).unwrap_or_default());
        match (has_ended, status) {
            (Some(_), Status::Booting | Status::Running) => {
                Err(Error::MachineDied { node: self.node, log: self.log.clone(), end: self.log_end() })
            }
            (_, status) => Ok(status),
        }
    }

    fn too_late(&self, status: &Status, limit: Option<Duration>) -> Error {
        let what = match (status, limit) {
            (Status::Booting, _) => format!("it did not come up within {:?}", limit.unwrap_or(MOST_SILENCE)),
            (_, Some(limit)) => format!("its command did not end within {limit:?}"),
            (_, None) => format!("its command has printed nothing for {MOST_SILENCE:?}"),
        };
        Error::MachineTimeout { node: self.node, what, log: self.log.clone(), end: self.log_end() }
    }

    fn log_end(&self) -> String {
        log_end(&String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Both fail only if qemu has ended already.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        if let Some(output) = self.output.take() {
            let _ = output.join();
        }
    }
}

/// Starts the machines, waits until the commands of all have ended, and returns the highest exit code.
pub(super) fn run(setup: &Setup<'_>) -> Result<u8, Error> {
    let mut patience = Patience::new(setup.limit);
    let accelerator = match accelerator() {
        "kvm" => "on the processor",
        _ => "emulated, some ten times slower than outside",
    };
    eprintln!(
        "rdma-vm: {} virtual machine{}, {accelerator}",
        setup.nodes,
        if setup.nodes == 1 { "" } else { "s" }
    );
    let mut machines = Vec::new();
    for node in 0..setup.nodes {
        machines.push(Machine::start(setup, node)?);
        if node + 1 < setup.nodes {
            // The other machine connects to these sockets.
            let sockets = [0, 1].map(|link| setup.scratch.join(socket(link)));
            while !sockets.iter().all(|socket| socket.exists()) {
                machines[0].status()?;
                patience.pause(&machines[0], &Status::Booting)?;
            }
        }
    }
    if setup.is_pinned {
        for machine in &mut machines {
            while machine.status()? == Status::Booting {
                patience.pause(machine, &Status::Booting)?;
            }
            pinning::pin(machine.qemu.id())?;
        }
    }
    let mut worst = 0;
    for number in 0..machines.len() {
        loop {
            // All machines are checked, because the others would wait for one that has died.
            let statuses = machines.iter_mut().map(Machine::status).collect::<Result<Vec<_>, _>>()?;
            if let Status::Ended(code) = statuses[number] {
                worst = worst.max(code);
                break;
            }
            patience.pause(&machines[number], &statuses[number])?;
        }
    }
    Ok(worst)
}

/// The time without output after which a progress line is printed.
const SILENCE: Duration = Duration::from_secs(10);
/// The time for which a machine may print nothing: ten times that of the longest test, emulated on two busy cores.
const MOST_SILENCE: Duration = Duration::from_secs(1200);

/// Waits for machines, within their limit, and prints what they are doing while they print nothing themselves.
struct Patience {
    began: Instant,
    limit: Option<Duration>,
    told: Instant,
}

impl Patience {
    fn new(limit: Option<Duration>) -> Self {
        let began = Instant::now();
        Self { began, limit, told: began }
    }

    /// Pauses shortly before the machine is checked again. Fails if its time is over.
    fn pause(&mut self, machine: &Machine, status: &Status) -> Result<(), Error> {
        let (now, heard) = (Instant::now(), *machine.heard.lock().expect("no thread fails with it"));
        let since = |then| now.saturating_duration_since(then);
        if is_over(self.limit, since(self.began), since(heard)) {
            return Err(machine.too_late(status, self.limit));
        }
        if since(self.told.max(heard)) >= SILENCE {
            self.told = now;
            let what = if *status == Status::Booting { "comes up" } else { "runs its command" };
            let (node, seconds, silent) = (machine.node, since(self.began).as_secs(), since(heard).as_secs());
            eprintln!("rdma-vm: node {node} {what}, for {seconds} s; nothing was printed for {silent} s");
        }
        std::thread::sleep(Duration::from_millis(20));
        Ok(())
    }
}

/// Whether a machine's time is over, after it has run `for_long` and printed nothing for the time `silent`.
fn is_over(limit: Option<Duration>, for_long: Duration, silent: Duration) -> bool {
    limit.map_or(silent >= MOST_SILENCE, |limit| for_long >= limit)
}

/// The limit, in seconds, for machines without one whose starter has ended.
const A_DAY: u64 = 86400;

/// The kernel's command line. The kernel passes unknown words in capitals to the first process, as environment.
fn kernel_arguments(setup: &Setup<'_>, node: u32) -> String {
    let nodes = setup.nodes;
    // The kernel distrusts an emulated processor's time counter, and without that counter, reading the time is slow.
    // Mitigations are off, because no untrusted code runs there. The limit is longer than the run's own, which is to be
    // reported.
    let limit = setup.limit.map_or(A_DAY, |limit| limit.as_secs() + 10);
    format!(
        "console=ttyS0 quiet loglevel=5 panic=-1 edd=off tsc=reliable mitigations=off rdinit=/init MSCCLPP_VM_NODE={node} MSCCLPP_VM_NODES={nodes} \
         MSCCLPP_VM_LIMIT={limit}"
    )
}

/// The socket of a network link between the two machines, in the folder of the run.
fn socket(link: u32) -> String {
    format!("link-{link}")
}

/// The arguments for two network adapters, joined with those of the other machine. A stream loses no packets, and slows a fast
/// sender down.
fn network_arguments(node: u32) -> Vec<String> {
    let server = if node == 0 { "on" } else { "off" };
    let adapter = |link| {
        let socket = socket(link);
        [
            "-netdev".to_owned(),
            format!("stream,id=link{link},server={server},addr.type=unix,addr.path={socket}"),
            "-device".to_owned(),
            format!(
                "virtio-net-pci,netdev=link{link},host_mtu=4200,speed=10000,duplex=full,mac=52:54:00:77:{link:02}:{:02}",
                node + 1
            ),
        ]
    };
    [0, 1].into_iter().flat_map(adapter).collect()
}

/// Reads the reports of `init.sh`. The last line may be unfinished.
fn status(text: &str) -> Status {
    let mut status = Status::Booting;
    for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::trim) {
        match line.strip_prefix("exit ") {
            Some(code) => status = Status::Ended(code.parse().unwrap_or(u8::MAX)),
            None if line == "up" => status = Status::Running,
            None => {}
        }
    }
    status
}

/// The last lines of a kernel's log, without the stacks that it prints when it panics.
fn log_end(log: &str) -> String {
    let text = log.split("Call Trace:").next().unwrap_or(log);
    let lines: Vec<_> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(10)..].join("\n")
}

/// Copies lines to standard output, each with a prefix, until there are no more, and notes when each came.
fn copy_lines(mut from: impl BufRead, prefix: &str, heard: &Mutex<Instant>) {
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
        *heard.lock().expect("no thread fails with it") = Instant::now();
        let mut to = std::io::stdout().lock();
        // The reader of our output may have ended; the machine goes on.
        let _ = to.write_all(prefix.as_bytes()).and_then(|()| to.write_all(&line)).and_then(|()| to.flush());
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_ended_when_its_whole_exit_line_is_there() {
        assert_eq!(status(""), Status::Booting);
        assert_eq!(status("up\r\n"), Status::Running);
        assert_eq!(status("up\r\nexit 1"), Status::Running);
        assert_eq!(status("up\r\nexit 17\r\n"), Status::Ended(17));
        assert_eq!(status("up\nexit nonsense\n"), Status::Ended(255));
    }

    #[test]
    fn a_machine_has_its_time_as_long_as_it_prints() {
        let seconds = Duration::from_secs;
        assert!(!is_over(None, seconds(36_000), seconds(60)), "slow, and at work");
        assert!(is_over(None, seconds(1300), MOST_SILENCE));
        assert!(is_over(Some(seconds(80)), seconds(80), seconds(0)), "what was asked for");
        assert!(!is_over(Some(seconds(3600)), seconds(3000), seconds(2900)));
    }

    #[test]
    fn the_end_of_a_log_is_what_was_said_before_the_stack() {
        let log = "[ 1.0] one\r\n\r\n[ 2.0] Kernel panic\r\n[ 2.1] Call Trace:\r\n[ 2.2] do_exit\r\n";
        assert_eq!(log_end(log), "[ 1.0] one\n[ 2.0] Kernel panic\n[ 2.1]");
        let long: String = (0..100).map(|number| format!("line {number}\n")).collect();
        assert!(log_end(&long).starts_with("line 90\n") && log_end(&long).ends_with("line 99"));
    }

    #[test]
    fn the_nodes_have_their_own_addresses_and_share_the_sockets() {
        let [first, second] = [0, 1].map(|node| network_arguments(node).join(" "));
        assert!(first.contains("server=on,addr.type=unix,addr.path=link-1"), "{first}");
        assert!(second.contains("server=off,addr.type=unix,addr.path=link-1"), "{second}");
        assert!(first.contains("mac=52:54:00:77:01:01") && second.contains("mac=52:54:00:77:01:02"));
    }
}
