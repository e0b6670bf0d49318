//! `gen-verbs`: makes the Rust types in `mscclpp-verbs-sys` from rdma-core's headers.
//!
//! The program `bindgen` makes them. It is fetched and built once into `target/`: as a library it would be part of every build
//! of xtask. It loads libclang when it runs (Debian's libclang1, or LIBCLANG_PATH); nothing else in this repository does.
//! The headers are those of one Debian package, fetched by apt-get, checked against its hash and unpacked under `target/`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::error::{Error, FileContext};
use crate::run::{capture, cargo, run as run_program};
use crate::workspace;

/// The package from which the bindings are made, its version, and the SHA-256 of its file for amd64.
const PACKAGE: &str = "libibverbs-dev";
const PACKAGE_VERSION: &str = "44.0-2";
const PACKAGE_HASH: &str = "78e87d12fb642bc41b04cb2e2f3f2f23cee14b89978a846b83defe945f388f72";

/// The version of the bindgen that made the bindings.
const BINDGEN_VERSION: &str = "0.72.1";

/// The path of the bindings.
const OUTPUT: &str = "crates/mscclpp-verbs-sys/src/bindings.rs";

/// The text before bindgen's output. The C library's types are not the same on every machine (a mutex has 40 bytes on
/// x86_64 and 48 on aarch64), so the `libc` crate supplies them.
const PREAMBLE: [&str; 1] = ["use libc::{pthread_cond_t, pthread_mutex_t};"];

/// Types that are declared in full, and enumerations, each of which becomes an integer type and constants.
const TYPES: &str = "
    __be16 __be32 __be64 __u16 __u32 __u64 _ibv_device_ops ib_uverbs_advise_mr_advice ib_uverbs_query_port_flags
    ibv_access_flags ibv_ah_attr ibv_async_event ibv_atomic_cap ibv_comp_channel ibv_context ibv_context_ops
    ibv_cq ibv_device ibv_device_attr ibv_device_cap_flags ibv_event_type ibv_gid ibv_gid_entry ibv_gid_type
    ibv_global_route ibv_mig_state ibv_mr ibv_mtu ibv_mw_bind_info ibv_mw_type ibv_node_type ibv_pd
    ibv_port_attr ibv_port_cap_flags ibv_port_state ibv_qp ibv_qp_attr ibv_qp_attr_mask ibv_qp_cap
    ibv_qp_init_attr ibv_qp_state ibv_qp_type ibv_recv_wr ibv_send_flags ibv_send_wr ibv_sge ibv_transport_type
    ibv_wc ibv_wc_flags ibv_wc_opcode ibv_wc_status ibv_wr_opcode verbs_context
";

/// Types that are only used behind pointers.
const OPAQUE: &str = "
    _compat_ibv_port_attr ibv_ah ibv_alloc_dm_attr ibv_counter_attach_attr ibv_counters ibv_counters_init_attr
    ibv_cq_ex ibv_cq_init_attr_ex ibv_device_attr_ex ibv_dm ibv_flow ibv_flow_action ibv_flow_action_esp_attr
    ibv_flow_attr ibv_modify_cq_attr ibv_mw ibv_mw_bind ibv_ops_wr ibv_parent_domain_init_attr
    ibv_qp_init_attr_ex ibv_qp_open_attr ibv_qp_rate_limit_attr ibv_query_device_ex_input ibv_rwq_ind_table
    ibv_rwq_ind_table_init_attr ibv_srq ibv_srq_attr ibv_srq_init_attr ibv_srq_init_attr_ex ibv_td
    ibv_td_init_attr ibv_values_ex ibv_wq ibv_wq_attr ibv_wq_init_attr ibv_xrcd ibv_xrcd_init_attr
    verbs_ex_private
";

/// The file that declares the functions. When it is compiled, they are compared with those of the headers.
const TABLE: &str = "crates/mscclpp-verbs-sys/src/table.rs";

/// Constants of enumerations without a name.
const CONSTANTS: [&str; 2] = ["IBV_LINK_LAYER_.*", "IBV_SYSFS_.*_MAX"];

#[derive(Args)]
pub(crate) struct Options {
    /// Write nothing; fail if the bindings differ from those of the headers.
    #[arg(long)]
    check: bool,

    /// A folder that contains `infiniband/verbs.h` [default: that of Debian's libibverbs-dev, fetched]. The output always names
    /// the pinned version, so this is for comparing only.
    #[arg(long, value_name = "FOLDER")]
    headers: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), Error> {
    let headers = match &options.headers {
        Some(folder) => folder.clone(),
        None => fetched_headers()?,
    };
    let text = generate(&fetched_bindgen()?, &headers)?;
    let path = workspace::root().join(OUTPUT);
    let present = std::fs::read_to_string(&path).unwrap_or_default();
    if present == text {
        println!("same       {OUTPUT}");
    } else if options.check {
        return Err(Error::StaleVerbs);
    } else {
        std::fs::write(&path, text).context("write", &path)?;
        println!("written    {OUTPUT}");
    }
    Ok(())
}

/// The folder of the pinned package's headers, fetched unless it is in `target/`.
fn fetched_headers() -> Result<PathBuf, Error> {
    let folder = workspace::target().join(format!("verbs-headers/{PACKAGE_VERSION}"));
    let include = folder.join("usr/include");
    if include.join("infiniband/verbs.h").is_file() {
        return Ok(include);
    }
    workspace::create_folder(&folder)?;
    println!("fetching {PACKAGE} {PACKAGE_VERSION} (0.6 MB), once");
    run_program(
        Command::new("apt-get")
            .args(["download", "--quiet"])
            .arg(format!("{PACKAGE}:amd64={PACKAGE_VERSION}"))
            .current_dir(&folder),
    )?;
    for package in workspace::files(&folder, "deb")? {
        let hash = capture(Command::new("sha256sum").arg(&package))?;
        if hash.split_whitespace().next() != Some(PACKAGE_HASH) {
            return Err(Error::Hash { path: package, expected: PACKAGE_HASH });
        }
        run_program(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(&folder))?;
    }
    Ok(include)
}

/// The pinned bindgen, built unless it is in `target/`.
fn fetched_bindgen() -> Result<PathBuf, Error> {
    let root = workspace::target().join(format!("bindgen-{BINDGEN_VERSION}"));
    let program = root.join("bin/bindgen");
    if !program.is_file() {
        println!("building bindgen {BINDGEN_VERSION} (two minutes), once");
        run_program(
            cargo()
                .args(["install", "--quiet", "--locked", "bindgen-cli", "--version", BINDGEN_VERSION])
                .arg("--root")
                .arg(&root),
        )?;
    }
    Ok(program)
}

fn generate(bindgen: &Path, headers: &Path) -> Result<String, Error> {
    let mut command = Command::new(bindgen);
    command.args([
        "--no-layout-tests",
        "--no-doc-comments",
        "--no-recursive-allowlist",
        "--default-enum-style=consts",
        "--no-prepend-enum-name",
        "--with-derive-default",
        "--use-core",
        "--disable-header-comment",
        "--rust-target=1.85",
        "--rust-edition=2024",
    ]);
    command.arg("--rustfmt-configuration-file").arg(workspace::root().join("rustfmt.toml"));
    let table = workspace::read(&workspace::root().join(TABLE))?;
    command.args(["--allowlist-type", &alternatives(TYPES.split_whitespace())]);
    command.args(["--allowlist-function", &alternatives(functions(&table))]);
    command.args(["--allowlist-var", &alternatives(CONSTANTS.into_iter())]);
    let header = headers.join("infiniband/verbs.h");
    let mut include = OsString::from("-I");
    include.push(headers);
    command.arg(header).arg("--").arg("--target=x86_64-unknown-linux-gnu").arg(include);
    let mut text = format!(
        "// Made by `cargo xtask gen-verbs` with bindgen {BINDGEN_VERSION} from the headers of rdma-core \
         {PACKAGE_VERSION} (Debian's {PACKAGE}).\n\n"
    );
    for line in PREAMBLE {
        text += &format!("{line}\n");
    }
    text += "\n";
    text += &capture(&mut command)?;
    for name in OPAQUE.split_whitespace() {
        text += &format!("#[repr(C)]\npub struct {name} {{\n    _only_pointed_to: [u8; 0],\n}}\n");
    }
    Ok(text)
}

/// The functions in the text of the table, in which each follows the name of its field.
fn functions(table: &str) -> impl Iterator<Item = &str> {
    let entries = table.lines().skip_while(|line| !line.starts_with("entry_points! {"));
    let behind_field = entries.filter_map(|line| line.split_once(": ")?.1.split([',', ' ']).next());
    behind_field.filter(|name| name.trim_start_matches('_').starts_with("ibv_"))
}

/// A pattern of bindgen that matches exactly these names, and the unnamed parts of such types.
fn alternatives<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("{name}(__bindgen_ty_.*)?")).collect::<Vec<_>>().join("|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_in_the_table() {
        let table = workspace::read(&workspace::root().join(TABLE)).unwrap();
        let found: Vec<_> = functions(&table).collect();
        assert_eq!((found.first(), found.last()), (Some(&"ibv_get_device_list"), Some(&"ibv_reg_dmabuf_mr")));
        let bindings = workspace::read(&workspace::root().join(OUTPUT)).unwrap();
        assert_eq!(found.len(), bindings.matches("pub fn ").count());
        assert!(found.iter().all(|name| bindings.contains(&format!("pub fn {name}("))));
    }
}
