//! The store that torchrun runs for the processes it starts.

use crate::Result;
use crate::launch::root_address;
use crate::launch::variables::Variables;

/// The location of a launcher's store. The store's protocol is the launcher's own: for torchrun, that of
/// `torch.distributed.TCPStore`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LauncherStore {
    /// An address or a host name.
    pub host: String,
    /// The port, which is the launcher's: nobody else may listen there.
    pub port: u16,
    /// The beginning of all keys, which is the same for all ranks of this start of the job, and different for every
    /// other start.
    pub prefix: String,
}

/// Returns torchrun's store, if its agent runs one and the user has not said where ranks meet.
pub(crate) fn of_torchrun(variables: &Variables<'_>) -> Result<Option<LauncherStore>> {
    let is_there = variables.text("TORCHELASTIC_USE_AGENT_STORE")?.is_some_and(|it| it.value == "True");
    if !is_there || root_address::given(variables)?.is_some() {
        return Ok(None);
    }
    let (Some(host), Some(port)) = (variables.text("MASTER_ADDR")?, variables.number("MASTER_PORT")?) else {
        return Ok(None);
    };
    // The store outlives ranks that failed and are started again, so the prefix contains the number of the start.
    let run = variables.text("TORCHELASTIC_RUN_ID")?.map_or_else(|| "none".to_owned(), |run| run.value);
    let start = variables.number("TORCHELASTIC_RESTART_COUNT")?.map_or(0, |count| count.value);
    let prefix = format!("mscclpp/{run}/{start}");
    Ok(Some(LauncherStore { host: host.value, port: root_address::port(port.value)?, prefix }))
}
