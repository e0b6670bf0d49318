//! All findings, as JSON.

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde::Serialize;

use super::finding::{Finding, Section};

/// All that was found, by section and in order.
pub(super) struct Report {
    sections: BTreeMap<Section, Vec<Finding>>,
}

/// As the JSON has it. Keys stay; more may come.
#[derive(Serialize)]
struct Json {
    version: &'static str,
    problems: usize,
    sections: BTreeMap<Section, Vec<Finding>>,
}

impl Report {
    pub(super) fn of(findings: Vec<Finding>) -> Self {
        // Each section is there, so that readers need not ask.
        let all = Section::value_variants().iter();
        let mut sections: BTreeMap<_, Vec<_>> = all.map(|section| (*section, Vec::new())).collect();
        for mut finding in findings {
            // From now on its place says it.
            if let Some(section) = finding.section.take() {
                sections.entry(section).or_default().push(finding);
            }
        }
        Self { sections }
    }

    pub(super) fn sections(&self) -> impl Iterator<Item = (Section, &[Finding])> {
        self.sections.iter().map(|(section, findings)| (*section, findings.as_slice()))
    }

    /// Section and item of each problem.
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
        // Where it stands in a table is the text's business.
        sections.values_mut().flatten().for_each(|finding| finding.cell = None);
        let json = Json { version: env!("CARGO_PKG_VERSION"), problems: self.problems().len(), sections };
        Ok(serde_json::to_string_pretty(&json)? + "\n")
    }
}
