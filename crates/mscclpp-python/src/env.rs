//! The settings that `env()` returns. Those that this library does not use are shown as the environment has them.

use std::env;

use pyo3::{prelude::*, sync::PyOnceLock};

fn read(variable: &str) -> String {
    env::var_os(variable).unwrap_or_default().to_string_lossy().into_owned()
}

/// Reads the newer variable, or the older one if that is not set. The log does the same.
fn read_either(newer: &str, older: &str) -> String {
    Some(read(newer)).filter(|value| !value.is_empty()).unwrap_or_else(|| read(older))
}

/// Declares the class: each setting, and the variable that it comes from.
macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $value:expr;)*) => {
        /// Environment variables as they were when they were first asked for.
        #[pyclass(name = "Env", module = "mscclpp._mscclpp", frozen, get_all)]
        #[derive(Debug)]
        pub(crate) struct PyEnv {
            $($(#[$doc])* $name: $type,)*
        }

        impl PyEnv {
            fn new() -> Self {
                Self { $($name: $value,)* }
            }
        }
    };
}

settings! {
    /// `MSCCLPP_LOG_LEVEL`.
    debug: String = read_either("MSCCLPP_LOG_LEVEL", "MSCCLPP_DEBUG");
    /// `MSCCLPP_LOG_SUBSYS`.
    debug_subsys: String = read_either("MSCCLPP_LOG_SUBSYS", "MSCCLPP_DEBUG_SUBSYS");
    /// `MSCCLPP_LOG_FILE`.
    debug_file: String = read_either("MSCCLPP_LOG_FILE", "MSCCLPP_DEBUG_FILE");
    /// `MSCCLPP_HCA_DEVICES`.
    hca_devices: String = read("MSCCLPP_HCA_DEVICES");
    /// `MSCCLPP_HOSTID`.
    hostid: String = read("MSCCLPP_HOSTID");
    /// `MSCCLPP_SOCKET_FAMILY`.
    socket_family: String = read("MSCCLPP_SOCKET_FAMILY");
    /// `MSCCLPP_SOCKET_IFNAME`.
    socket_ifname: String = read("MSCCLPP_SOCKET_IFNAME");
    /// `MSCCLPP_COMM_ID`.
    comm_id: String = read("MSCCLPP_COMM_ID");
    /// `MSCCLPP_IBV_MODE`.
    ibv_mode: String = read("MSCCLPP_IBV_MODE");
    /// The folder of compiled kernels: `MSCCLPP_CACHE_DIR`, or the default.
    cache_dir: String = mscclpp::gpu::kernel_cache().unwrap_or_default().to_string_lossy().into_owned();
    /// `MSCCLPP_NPKIT_DUMP_DIR`.
    npkit_dump_dir: String = read("MSCCLPP_NPKIT_DUMP_DIR");
    /// `MSCCLPP_CUDAIPC_USE_DEFAULT_STREAM`.
    cuda_ipc_use_default_stream: bool =
        matches!(&*read("MSCCLPP_CUDAIPC_USE_DEFAULT_STREAM"), "1" | "true");
    /// `MSCCLPP_IB_GID_INDEX`, or -1.
    ib_gid_index: i64 = read("MSCCLPP_IB_GID_INDEX").parse().unwrap_or(-1);
}

#[pymethods]
impl PyEnv {
    fn __repr__(&self) -> String {
        format!("<mscclpp.{self:?}>").replacen("PyEnv", "Env", 1)
    }
}

/// Returns the settings. Every call returns the same object.
#[pyfunction(name = "env")]
pub(crate) fn settings(py: Python<'_>) -> PyResult<Py<PyEnv>> {
    static SETTINGS: PyOnceLock<Py<PyEnv>> = PyOnceLock::new();
    let settings = SETTINGS.get_or_try_init(py, || Py::new(py, PyEnv::new()))?;
    Ok(settings.clone_ref(py))
}
