//! A finding: one line of the text report, one object of the JSON. And the report of all findings.

use std::{collections::BTreeMap, fmt::Display};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A part of the report. The variants are in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(super) enum Section {
    Platform,
    Devices,
    Exports,
    Peers,
    GpuDirect,
    Rdma,
    Loopback,
    Network,
    Launcher,
    Compilers,
    Limits,
    Nccl,
}

impl Section {
    /// The section's title, which also explains its table if it has one.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Platform => "Platforms",
            Self::Devices => "Devices",
            Self::Exports => "Sharing device memory between processes, tried (columns: devices)",
            Self::Peers => {
                "Peer access: GB/s of copies from the row's device into the column's memory, checked (~: no atomics)"
            }
            Self::GpuDirect => "GPUDirect: how adapters reach device memory (columns: devices)",
            Self::Rdma => "RDMA devices",
            Self::Loopback => {
                "RDMA loopback: a put of each adapter (row) from and to each device (column), checked"
            }
            Self::Network => "Network interfaces, as they are offered to peers, best first",
            Self::Launcher => "Launcher",
            Self::Compilers => "Compilers of kernels",
            Self::Limits => "Limits",
            Self::Nccl => "NCCL, as the modules of a Python environment call it (--: not this library)",
        }
    }

    fn found(self, item: impl Display, outcome: Outcome) -> Finding {
        Finding { section: Some(self), item: item.to_string(), outcome, facts: Map::new(), cell: None }
    }

    pub(super) fn ok(self, item: impl Display, text: impl Display) -> Finding {
        self.found(item, Outcome::Ok { text: text.to_string() })
    }

    pub(super) fn note(self, item: impl Display, text: impl Display) -> Finding {
        self.found(item, Outcome::Note { text: text.to_string() })
    }

    pub(super) fn unavailable(self, item: impl Display, reason: impl Display, remedy: &str) -> Finding {
        self.failed(item, reason, remedy, false)
    }

    pub(super) fn problem(self, item: impl Display, reason: impl Display, remedy: &str) -> Finding {
        self.failed(item, reason, remedy, true)
    }

    /// Makes a finding of a failure, which is a problem if `is_needed`.
    pub(super) fn failed(
        self,
        item: impl Display,
        reason: impl Display,
        remedy: &str,
        is_needed: bool,
    ) -> Finding {
        let (reason, remedy) = (reason.to_string(), remedy.to_owned());
        let outcome = match is_needed {
            true => Outcome::Problem { reason, remedy },
            false => Outcome::Unavailable { reason, remedy },
        };
        self.found(item, outcome)
    }

    /// Makes a finding of the result of a trial, with a cell of the section's table. A failure is a problem if `is_needed`.
    pub(super) fn tried(
        self,
        item: String,
        result: Result<String, Failure>,
        is_needed: bool,
        (row, column): (&str, usize),
    ) -> Finding {
        let finding = match result {
            Ok(text) => self.ok(item, text),
            Err(Failure { reason, remedy }) => self.failed(item, reason, remedy, is_needed),
        };
        let mark = finding.outcome.mark();
        finding.at(row, column, mark)
    }
}

/// Whether an item works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub(super) enum Outcome {
    /// The item works.
    Ok { text: String },
    /// The item is a fact, neither right nor wrong.
    Note { text: String },
    /// The item does not work, and nothing else on this machine needs it.
    Unavailable { reason: String, remedy: String },
    /// The item does not work, and something on this machine, or that its user has chosen, needs it.
    Problem { reason: String, remedy: String },
}

impl Outcome {
    pub(super) fn mark(&self) -> &'static str {
        match self {
            Self::Ok { .. } => "ok",
            Self::Note { .. } => "",
            Self::Unavailable { .. } => "--",
            Self::Problem { .. } => "!!",
        }
    }
}

/// The reason why an item does not work, and a remedy.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) reason: String,
    pub(super) remedy: &'static str,
}

impl Failure {
    pub(super) fn new(reason: impl Display, remedy: &'static str) -> Self {
        Self { reason: reason.to_string(), remedy }
    }
}

/// The result of one examined item.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Finding {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) section: Option<Section>,
    /// The item's name, which is unique within its section.
    pub(super) item: String,
    #[serde(flatten)]
    pub(super) outcome: Outcome,
    /// Single values, under keys that do not change.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub(super) facts: Map<String, Value>,
    /// The item's cell in the section's table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cell: Option<Cell>,
}

/// A cell of a table, and its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) row: String,
    /// The number of the column's device.
    pub(super) column: usize,
    pub(super) text: String,
}

impl Finding {
    /// Adds the facts of a JSON object to the finding.
    pub(super) fn facts(mut self, facts: Value) -> Self {
        if let Value::Object(facts) = facts {
            self.facts.extend(facts);
        }
        self
    }

    /// Puts the finding into a cell of the section's table.
    pub(super) fn at(mut self, row: impl Display, column: usize, text: impl Display) -> Self {
        self.cell = Some(Cell { row: row.to_string(), column, text: text.to_string() });
        self
    }
}

/// All findings, by section and in order, as the JSON has them. Its keys do not change; more may be added.
#[derive(Serialize)]
pub(super) struct Report {
    version: &'static str,
    /// The number of problems.
    pub(super) problems: usize,
    pub(super) sections: BTreeMap<Section, Vec<Finding>>,
}

impl Report {
    /// Makes a report with these sections. Every section exists, so that readers of the JSON need not check.
    pub(super) fn of(sections: impl IntoIterator<Item = Section>, findings: Vec<Finding>) -> Self {
        let is_problem = |it: &&Finding| matches!(it.outcome, Outcome::Problem { .. });
        let problems = findings.iter().filter(is_problem).count();
        let mut sections: BTreeMap<_, Vec<_>> = sections.into_iter().map(|it| (it, Vec::new())).collect();
        for mut finding in findings {
            // The key of the map now says the section.
            if let Some(section) = finding.section.take() {
                sections.entry(section).or_default().push(finding);
            }
        }
        Self { version: env!("CARGO_PKG_VERSION"), problems, sections }
    }

    pub(super) fn into_json(mut self) -> serde_json::Result<String> {
        // The place in a table concerns only the text report.
        self.sections.values_mut().flatten().for_each(|finding| finding.cell = None);
        Ok(serde_json::to_string_pretty(&self)? + "\n")
    }
}
