//! Tests of the variables of launchers and users, and of the values read from them. The variables are those that
//! matter, as the launchers set them.

use std::ffi::OsString;

use mscclpp_bootstrap::fuzzing::job_id;
use mscclpp_bootstrap::{Env, Error, Family, Rendezvous, Result};

fn read(variables: &[(&str, &str)]) -> Result<Rendezvous> {
    Rendezvous::from_lookup(|asked| {
        variables.iter().find(|(name, _)| *name == asked).map(|(_, value)| OsString::from(value))
    })
}

fn message(variables: &[(&str, &str)]) -> String {
    read(variables).unwrap_err().to_string()
}

const TORCHRUN: [(&str, &str); 8] = [
    ("RANK", "9"),
    ("WORLD_SIZE", "16"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "8"),
    ("MASTER_ADDR", "node3"),
    ("MASTER_PORT", "29500"),
    ("TORCHELASTIC_RUN_ID", "my-run"),
    ("TORCHELASTIC_RESTART_COUNT", "0"),
];

const OPEN_MPI: [(&str, &str); 6] = [
    ("OMPI_COMM_WORLD_RANK", "3"),
    ("OMPI_COMM_WORLD_SIZE", "4"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "3"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
    ("PMIX_RANK", "3"),
    ("PMIX_NAMESPACE", "prterun-login-77@1"),
];

const SRUN: [(&str, &str); 9] = [
    ("SLURM_PROCID", "5"),
    ("SLURM_NTASKS", "8"),
    ("SLURM_STEP_NUM_TASKS", "8"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_JOB_ID", "4711"),
    ("SLURM_STEP_ID", "2"),
    ("SLURM_STEP_NUM_NODES", "2"),
    ("SLURM_STEP_NODELIST", "node[07-08]"),
    ("SLURM_JOB_NODELIST", "node[05-08]"),
];

const INDEXED_JOB: [(&str, &str); 4] = [
    ("JOB_COMPLETION_INDEX", "2"),
    ("HOSTNAME", "train-gpt-2"),
    ("MSCCLPP_N_RANKS", "4"),
    ("MSCCLPP_ADDRESS", "train-gpt-0.train:50505"),
];

/// Returns `first` with more variables, which take precedence.
fn with<'a>(first: &[(&'a str, &'a str)], more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [more, first].concat()
}

fn without<'a>(variables: &[(&'a str, &'a str)], name: &str) -> Vec<(&'a str, &'a str)> {
    variables.iter().copied().filter(|(known, _)| *known != name).collect()
}

/// The rank, number of ranks, address, job and rank on the node.
type Expected<'a> = (usize, usize, &'a str, Option<&'a str>, Option<usize>);

/// A name, the variables, and the expected values.
type Case<'a> = (&'a str, Vec<(&'a str, &'a str)>, Expected<'a>);

#[test]
fn what_each_launcher_says() {
    let in_batch_shell =
        with(&OPEN_MPI, &[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_ID", "4711")]);
    let table: [Case<'_>; 12] = [
        (
            "our own variables",
            vec![
                ("MSCCLPP_RANK", "1"),
                ("MSCCLPP_N_RANKS", "2"),
                ("MSCCLPP_ADDRESS", "eth0:10.0.0.1:50505"),
                ("MSCCLPP_JOB_ID", "mine"),
            ],
            (1, 2, "eth0:10.0.0.1:50505", Some("mine"), None),
        ),
        (
            "torchrun: a port beside that of its store",
            TORCHRUN.to_vec(),
            (9, 16, "node3:19500", Some("torchrun run my-run"), Some(1)),
        ),
        (
            "torchrun without an id",
            with(&TORCHRUN, &[("TORCHELASTIC_RUN_ID", "none")]),
            (9, 16, "node3:19500", None, Some(1)),
        ),
        (
            "PyTorch's variables, set by hand",
            vec![("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "fd00::1"), ("MASTER_PORT", "12345")],
            (0, 2, "[fd00::1]:22345", None, None),
        ),
        (
            "mpirun on one host",
            OPEN_MPI.to_vec(),
            (3, 4, "127.0.0.1:PORT", Some("PMIx namespace prterun-login-77@1"), Some(3)),
        ),
        (
            "mpirun on several hosts",
            with(&OPEN_MPI, &[("OMPI_COMM_WORLD_LOCAL_SIZE", "2"), ("MSCCLPP_ADDRESS", "10.0.0.1:7000")]),
            (3, 4, "10.0.0.1:7000", Some("PMIx namespace prterun-login-77@1"), Some(3)),
        ),
        (
            "mpirun in the shell of a Slurm job, whose numbers are of no step",
            in_batch_shell,
            (3, 4, "127.0.0.1:PORT", Some("PMIx namespace prterun-login-77@1"), Some(3)),
        ),
        (
            "MPICH's mpiexec",
            vec![
                ("PMI_RANK", "1"),
                ("PMI_SIZE", "2"),
                ("MPI_LOCALRANKID", "0"),
                ("MPI_LOCALNRANKS", "1"),
                ("MSCCLPP_ADDRESS", "10.0.0.1:7000"),
            ],
            (1, 2, "10.0.0.1:7000", None, Some(0)),
        ),
        ("srun", SRUN.to_vec(), (5, 8, "node07:PORT", Some("Slurm job 4711 step 2"), Some(1))),
        (
            "srun on one host",
            with(&SRUN, &[("SLURM_STEP_NUM_NODES", "1")]),
            (5, 8, "127.0.0.1:PORT", Some("Slurm job 4711 step 2"), Some(1)),
        ),
        (
            "an indexed job",
            INDEXED_JOB.to_vec(),
            (2, 4, "train-gpt-0.train:50505", Some("Kubernetes job train-gpt"), None),
        ),
        (
            "one rank needs nobody's address",
            vec![("MSCCLPP_RANK", "0"), ("MSCCLPP_N_RANKS", "1")],
            (0, 1, "127.0.0.1:1", None, None),
        ),
    ];
    for (name, variables, (rank, n_ranks, address, job, local_rank)) in table {
        let read = read(&variables).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!((read.rank, read.n_ranks), (rank, n_ranks), "{name}");
        match address.strip_suffix("PORT") {
            None => assert_eq!(read.address, address, "{name}"),
            Some(front) => {
                let port: u16 = read.address.strip_prefix(front).expect(name).parse().expect(name);
                assert!((10_000..30_000).contains(&port), "{name}: {port}");
            }
        }
        assert_eq!(read.job.as_deref(), job, "{name}");
        assert_eq!(read.local_rank, local_rank, "{name}");
    }
}

#[test]
fn the_older_name_of_the_address_is_read() {
    let older = with(&OPEN_MPI, &[("MSCCLPP_COMM_ID", "eth0:10.0.0.1:7000")]);
    assert_eq!(read(&older).unwrap().address, "eth0:10.0.0.1:7000");
    let both = with(&older, &[("MSCCLPP_ADDRESS", "eth0:10.0.0.1:7000")]);
    assert_eq!(read(&both).unwrap().address, "eth0:10.0.0.1:7000");
}

#[test]
fn the_store_of_torchrun_is_named_unless_the_user_says_where_to_meet() {
    let agent = with(&TORCHRUN, &[("TORCHELASTIC_USE_AGENT_STORE", "True")]);
    let of = |variables: &[(&str, &str)]| read(variables).unwrap().store;
    let store = of(&agent).unwrap();
    assert_eq!(
        (store.host.as_str(), store.port, store.prefix.as_str()),
        ("node3", 29500, "mscclpp/my-run/0")
    );
    let again = of(&with(&agent, &[("TORCHELASTIC_RESTART_COUNT", "2")])).unwrap();
    assert_eq!(again.prefix, "mscclpp/my-run/2");
    assert_eq!(of(&TORCHRUN), None, "the ranks run it themselves");
    assert_eq!(of(&with(&agent, &[("TORCHELASTIC_USE_AGENT_STORE", "False")])), None);
    assert_eq!(of(&with(&agent, &[("MSCCLPP_ADDRESS", "10.0.0.1:7000")])), None);
    assert_eq!(of(&with(&agent, &[("MSCCLPP_COMM_ID", "10.0.0.1:7000")])), None);
    let by_hand =
        [("TORCHELASTIC_USE_AGENT_STORE", "True"), ("MASTER_ADDR", "node3"), ("MASTER_PORT", "29500")];
    assert_eq!(of(&with(&SRUN, &by_hand)), None, "left over from elsewhere");
}

#[test]
fn a_rank_that_was_given_an_address_has_the_id_of_its_launcher() {
    let in_slurm = with(&TORCHRUN, &SRUN);
    let numbers_of_none = [("PMI_RANK", "one"), ("RANK", "captain")];
    type Case<'a> = (&'a [(&'a str, &'a str)], usize, Option<&'a str>);
    let table: [Case<'_>; 10] = [
        (&[("MSCCLPP_JOB_ID", "mine")], 2, Some("mine")),
        (&with(&SRUN, &[("MSCCLPP_JOB_ID", "mine")]), 99, Some("mine")),
        (&SRUN, 8, Some("Slurm job 4711 step 2")),
        (&OPEN_MPI, 3, Some("PMIx namespace prterun-login-77@1")),
        (&INDEXED_JOB, 4, Some("Kubernetes job train-gpt")),
        (&in_slurm, 16, Some("torchrun run my-run")),
        (&with(&in_slurm, &[("TORCHELASTIC_RUN_ID", "none")]), 8, None),
        // These launchers have started only a part of the job.
        (&SRUN, 9, None),
        (&OPEN_MPI, 5, None),
        (&numbers_of_none, 1, None),
    ];
    for (variables, n_ranks, id) in table {
        let lookup = |asked| variables.iter().find(|(name, _)| *name == asked).map(|(_, value)| value.into());
        assert_eq!(job_id(lookup, n_ranks).unwrap().as_deref(), id, "{variables:?}");
    }
    let error = job_id(|_| Some("a\nb".into()), 1).unwrap_err();
    assert!(error.to_string().contains("MSCCLPP_JOB_ID"), "{error}");
}

#[test]
fn of_a_launcher_inside_another_the_inner_one_counts() {
    // There is one task of Slurm for each node, in which torchrun starts eight ranks, or mpirun its daemons.
    let torchrun = read(&with(&SRUN, &TORCHRUN)).unwrap();
    assert_eq!((torchrun.rank, torchrun.n_ranks), (9, 16));
    assert_eq!(torchrun.job.as_deref(), Some("torchrun run my-run"));
    let same_number = with(&SRUN, &with(&TORCHRUN, &[("RANK", "6"), ("WORLD_SIZE", "8")]));
    assert_eq!(read(&same_number).unwrap().rank, 6, "torchrun numbers hosts in an order of its own");
    let mpirun = read(&with(&SRUN, &OPEN_MPI)).unwrap();
    assert_eq!((mpirun.rank, mpirun.n_ranks), (3, 4));
    assert_eq!(mpirun.job.as_deref(), Some("PMIx namespace prterun-login-77@1"));
    let in_pod = with(&TORCHRUN, &[("JOB_COMPLETION_INDEX", "1"), ("HOSTNAME", "train-1")]);
    assert_eq!(read(&in_pod).unwrap().rank, 9);
    // The step's own list of nodes is that of the daemons, so nothing says where rank 0 is.
    let several_hosts = with(&SRUN, &with(&OPEN_MPI, &[("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]));
    assert!(message(&several_hosts).contains("MSCCLPP_ADDRESS"));
}

#[test]
fn sources_that_agree_are_one() {
    let pmix_of_slurm = with(&SRUN, &[("PMIX_RANK", "5"), ("PMIX_NAMESPACE", "slurm.pmix.4711.2")]);
    let read_pmix = read(&pmix_of_slurm).unwrap();
    assert_eq!((read_pmix.rank, read_pmix.n_ranks), (5, 8));
    assert_eq!(read_pmix.job.as_deref(), Some("PMIx namespace slurm.pmix.4711.2"));
    let exported = with(&SRUN, &[("RANK", "5"), ("WORLD_SIZE", "8"), ("MASTER_ADDR", "node07")]);
    let exported = read(&exported).unwrap();
    assert_eq!(exported.rank, 5);
    assert!(exported.address.starts_with("node07:"), "{}", exported.address);
}

#[test]
fn two_sources_that_disagree_are_an_error_that_names_both() {
    for (variables, parts) in [
        (with(&OPEN_MPI, &[("MSCCLPP_RANK", "0")]), ["MSCCLPP_RANK=0", "OMPI_COMM_WORLD_RANK=3"]),
        (with(&OPEN_MPI, &[("MSCCLPP_N_RANKS", "8")]), ["MSCCLPP_N_RANKS=8", "OMPI_COMM_WORLD_SIZE=4"]),
        (with(&OPEN_MPI, &[("PMIX_RANK", "1")]), ["OMPI_COMM_WORLD_RANK=3", "PMIX_RANK=1"]),
        (with(&SRUN, &[("RANK", "4"), ("WORLD_SIZE", "8")]), ["RANK=4", "SLURM_PROCID=5"]),
        (with(&SRUN, &[("RANK", "5"), ("WORLD_SIZE", "4")]), ["WORLD_SIZE=4", "SLURM_STEP_NUM_TASKS=8"]),
        (with(&SRUN, &[("PMI_RANK", "4"), ("PMI_SIZE", "8")]), ["PMI_RANK=4", "SLURM_PROCID=5"]),
        (with(&SRUN, &[("PMIX_RANK", "0")]), ["PMIX_RANK=0", "SLURM_PROCID=5"]),
        (with(&TORCHRUN, &[("MSCCLPP_RANK", "1")]), ["MSCCLPP_RANK=1", "RANK=9"]),
        (with(&INDEXED_JOB, &[("MSCCLPP_RANK", "1")]), ["MSCCLPP_RANK=1", "JOB_COMPLETION_INDEX=2"]),
        (
            with(&INDEXED_JOB, &[("MSCCLPP_COMM_ID", "10.0.0.1:7000")]),
            ["MSCCLPP_ADDRESS=train-gpt-0.train:50505", "MSCCLPP_COMM_ID=10.0.0.1:7000"],
        ),
    ] {
        let error = read(&variables).unwrap_err();
        assert!(matches!(error, Error::EnvironmentConflict { .. }), "{error}");
        let message = error.to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
}

#[test]
fn what_is_missing_is_said_with_what_to_set() {
    assert!(matches!(read(&[]), Err(Error::NotLaunched)));
    assert!(matches!(read(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")]), Err(Error::NotLaunched)));
    let interactive = with(&SRUN, &[("SLURM_STEP_ID", "4294967290")]);
    assert!(matches!(read(&interactive), Err(Error::NotLaunched)), "the shell of an allocation");
    assert!(matches!(read(&[("RANK", "3")]), Err(Error::NotLaunched)), "it may be anything");
    for (variables, parts) in [
        (without(&INDEXED_JOB, "MSCCLPP_N_RANKS"), ["JOB_COMPLETION_INDEX=2", "MSCCLPP_N_RANKS"]),
        (without(&INDEXED_JOB, "MSCCLPP_ADDRESS"), ["JOB_COMPLETION_INDEX=2", "MSCCLPP_ADDRESS"]),
        (vec![("MSCCLPP_N_RANKS", "2")], ["MSCCLPP_N_RANKS=2", "MSCCLPP_RANK"]),
        (without(&TORCHRUN, "MASTER_ADDR"), ["RANK=9", "MSCCLPP_ADDRESS"]),
    ] {
        let error = read(&variables).unwrap_err();
        assert!(matches!(error, Error::IncompleteEnvironment { .. }), "{error}");
        let message = error.to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
}

#[test]
fn malformed_values_name_their_variable() {
    for (variables, part) in [
        (with(&OPEN_MPI, &[("OMPI_COMM_WORLD_RANK", "three")]), "OMPI_COMM_WORLD_RANK"),
        (with(&TORCHRUN, &[("MASTER_PORT", "0")]), "MASTER_PORT"),
        (with(&TORCHRUN, &[("MASTER_PORT", "http")]), "MASTER_PORT"),
        (with(&SRUN, &[("SLURM_PROCID", "-1")]), "SLURM_PROCID"),
        (
            with(&OPEN_MPI, &[("MSCCLPP_ADDRESS", "node7")]),
            "(from MSCCLPP_ADDRESS) is not a usable address: there is no",
        ),
        (with(&OPEN_MPI, &[("MSCCLPP_COMM_ID", "node7")]), "(from MSCCLPP_COMM_ID)"),
        (
            with(&TORCHRUN, &[("MASTER_ADDR", "no host")]),
            "MASTER_ADDR is \"no host\"; allowed: an IP address",
        ),
        (
            with(&TORCHRUN, &[("MASTER_ADDR", "fe80::1%eth0")]),
            "MASTER_ADDR is \"fe80::1%eth0\"; allowed: an IP address that is not link-local, or a host name",
        ),
        (
            with(&SRUN, &[("SLURM_STEP_NODELIST", "node[")]),
            "SLURM_STEP_NODELIST is \"node[\"; allowed: a list",
        ),
        (with(&SRUN, &[("SLURM_STEP_NODELIST", "a b")]), "SLURM_STEP_NODELIST is \"a b\"; allowed: a list"),
        (
            vec![("MSCCLPP_RANK", "0"), ("MSCCLPP_N_RANKS", "0")],
            "MSCCLPP_N_RANKS is \"0\"; allowed: a number from 1",
        ),
        (with(&SRUN, &[("MSCCLPP_JOB_ID", "a\nb")]), "MSCCLPP_JOB_ID"),
        (with(&OPEN_MPI, &[("OMPI_COMM_WORLD_RANK", "4"), ("PMIX_RANK", "4")]), "OMPI_COMM_WORLD_RANK=4"),
    ] {
        let message = message(&variables);
        assert!(message.contains(part), "{message}");
    }
    // An empty value counts as unset.
    assert_eq!(read(&with(&SRUN, &[("MSCCLPP_RANK", ""), ("MASTER_ADDR", "")])).unwrap().rank, 5);
}

#[test]
fn of_what_is_missing_only_the_rank_differs_between_ranks() {
    let rank = message(&[("MSCCLPP_N_RANKS", "2")]);
    assert_eq!(
        rank,
        "MSCCLPP_N_RANKS=2 is set, but nothing says which rank this is; set MSCCLPP_RANK, to a number of its own for each \
         rank"
    );
    let address = message(&[("MSCCLPP_RANK", "0"), ("MSCCLPP_N_RANKS", "2")]);
    assert_eq!(
        address,
        "MSCCLPP_RANK=0, MSCCLPP_N_RANKS=2 are set, but nothing says where rank 0 listens; set MSCCLPP_ADDRESS, to the \
         same value for all ranks"
    );
}

/// An error about the variable's address names it; an error about another address does not.
#[test]
fn an_address_of_no_use_names_its_variable() {
    let own = |address| [("MSCCLPP_RANK", "0"), ("MSCCLPP_N_RANKS", "2"), ("MSCCLPP_ADDRESS", address)];
    for (address, part) in [
        ("192.0.2.77:50505", "no interface of this machine, where rank 0 runs, has it"),
        ("eth99:127.0.0.1:50505", "there is no network interface \"eth99\""),
        ("lo:192.0.2.77:50505", "the interface lo does not have this address"),
    ] {
        let job = read(&own(address)).unwrap();
        let started = job.builder().env(Env::default()).connect(&job.address);
        let message = started.unwrap_err().to_string();
        assert!(message.contains(part) && message.contains("(from MSCCLPP_ADDRESS)"), "{message}");
        assert!(!message.contains("expected"), "{message}");
        // Another address is not that of the variable.
        let error = job.builder().env(Env::default()).connect("192.0.2.78:1").unwrap_err();
        assert!(!error.to_string().contains("from"), "{error}");
    }
}

#[test]
fn jobs_have_ids_of_their_own() {
    let address = |variables: &[(&str, &str)]| read(variables).unwrap().address;
    let one = address(&SRUN);
    assert_eq!(one, address(&with(&SRUN, &[("SLURM_PROCID", "0"), ("SLURM_LOCALID", "0")])), "for all ranks");
    assert_ne!(one, address(&with(&SRUN, &[("SLURM_STEP_ID", "3")])), "for each step");
    let named = with(&INDEXED_JOB, &[("JOB_NAME", "other")]);
    assert_eq!(read(&named).unwrap().job.as_deref(), Some("Kubernetes job other"));
    let elsewhere = with(&INDEXED_JOB, &[("HOSTNAME", "somewhere")]);
    assert_eq!(read(&elsewhere).unwrap().job, None);
}

fn env(name: &'static str, value: &str) -> Result<Env> {
    let value = OsString::from(value);
    Env::from_lookup(move |asked| (asked == name).then(|| value.clone()))
}

#[test]
fn good_settings() {
    assert_eq!(Env::from_lookup(|_| None).unwrap(), Env::default());
    assert_eq!(env("MSCCLPP_SOCKET_FAMILY", "AF_INET6").unwrap().family, Some(Family::V6));
    assert_eq!(env("MSCCLPP_SOCKET_IFNAME", "eth0.12").unwrap().interface.as_deref(), Some("eth0.12"));
    assert_eq!(env("MSCCLPP_HOSTID", "a b").unwrap().host_id.as_deref(), Some("a b"));
    assert_eq!(env("MSCCLPP_BOOTSTRAP_SECRET", "swordfish").unwrap().secret.as_deref(), Some("swordfish"));
}

#[test]
fn bad_settings_name_the_variable_and_what_is_allowed() {
    for (name, value, allowed) in [
        ("MSCCLPP_SOCKET_FAMILY", "ipv4", "AF_INET6"),
        ("MSCCLPP_BOOTSTRAP_SECRET", "", "1024"),
        ("MSCCLPP_BOOTSTRAP_SECRET", &"x".repeat(1025), "1024"),
    ] {
        let message = env(name, value).unwrap_err().to_string();
        assert!(message.contains(name) && message.contains(allowed), "{message}");
        assert!(!message.contains("xxx"), "{message}");
    }
}

#[test]
fn an_empty_value_counts_as_unset() {
    let all_but_the_secret = |name| (name != "MSCCLPP_BOOTSTRAP_SECRET").then(OsString::new);
    assert_eq!(Env::from_lookup(all_but_the_secret).unwrap(), Env::default());
}

#[test]
fn a_secret_is_never_shown() {
    let env = env("MSCCLPP_BOOTSTRAP_SECRET", "swordfish").unwrap();
    assert!(!format!("{env:?}").contains("swordfish"));
}
