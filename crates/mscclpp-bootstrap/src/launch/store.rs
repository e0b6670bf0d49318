//! The store that torchrun runs for the processes it starts.

use crate::launch::place;
use crate::launch::variables::Variables;
use crate::{LauncherStore, Result};

/// Returns torchrun's store, if its agent runs one and the user has not said where ranks meet.
pub(crate) fn of_torchrun(variables: &Variables<'_>) -> Result<Option<LauncherStore>> {
    let is_there = variables.text("TORCHELASTIC_USE_AGENT_STORE")?.is_some_and(|it| it.value == "True");
    if !is_there || place::given(variables)?.is_some() {
        return Ok(None);
    }
    let (Some(host), Some(port)) = (variables.text("MASTER_ADDR")?, variables.number("MASTER_PORT")?) else {
        return Ok(None);
    };
    // The store outlives ranks that failed and are started again, so the prefix contains the number of the start.
    let run = variables.text("TORCHELASTIC_RUN_ID")?.map_or_else(|| "none".to_owned(), |run| run.value);
    let start = variables.number("TORCHELASTIC_RESTART_COUNT")?.map_or(0, |count| count.value);
    let prefix = format!("mscclpp/{run}/{start}");
    Ok(Some(LauncherStore { host: host.value, port: place::port(port.value)?, prefix }))
}
