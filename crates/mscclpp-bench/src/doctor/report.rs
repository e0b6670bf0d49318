//! All findings, and their form as JSON.

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde::Serialize;

use super::finding::{Finding, Section};

/// All findings, by section and in order.
pub(super) struct Report {
    sections: BTreeMap<Section, Vec<Finding>>,
}

/// The JSON form of the report. Its keys do not change; more may be added.
#[derive(Serialize)]
struct Json {
    version: &'static str,
    problems: usize,
    sections: BTreeMap<Section, Vec<Finding>>,
}

impl Report {
    /// The report about the machine.
    pub(super) fn of(findings: Vec<Finding>) -> Self {
        let all = Section::value_variants().iter().copied();
        Self::with(all.filter(|section| *section != Section::Nccl), findings)
    }

    /// The report about a Python environment.
    pub(super) fn of_nccl(findings: Vec<Finding>) -> Self {
        Self::with([Section::Nccl], findings)
    }

    fn with(sections: impl IntoIterator<Item = Section>, findings: Vec<Finding>) -> Self {
        // Every section exists, so that readers of the JSON need not check.
        let mut sections: BTreeMap<_, Vec<_>> =
            sections.into_iter().map(|section| (section, Vec::new())).collect();
        for mut finding in findings {
            // The key of the map now says the section.
            if let Some(section) = finding.section.take() {
                sections.entry(section).or_default().push(finding);
            }
        }
        Self { sections }
    }

    pub(super) fn sections(&self) -> impl Iterator<Item = (Section, &[Finding])> {
        self.sections.iter().map(|(section, findings)| (*section, findings.as_slice()))
    }

    /// The section and item of each problem.
    pub(super) fn problems(&self) -> Vec<(Section, &str)> {
        let all = self.sections();
        all.flat_map(|(section, findings)| {
            let problems = findings.iter().filter(|finding| finding.is_problem());
            problems.map(move |finding| (section, finding.item.as_str()))
        })
        .collect()
    }

    pub(super) fn to_json(&self) -> serde_json::Result<String> {
        let mut sections = self.sections.clone();
        // The place in a table concerns only the text report.
        sections.values_mut().flatten().for_each(|finding| finding.cell = None);
        let json = Json { version: env!("CARGO_PKG_VERSION"), problems: self.problems().len(), sections };
        Ok(serde_json::to_string_pretty(&json)? + "\n")
    }
}
