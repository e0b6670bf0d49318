//! `all-reduce --simulate`: the times that the library's model predicts for an all_reduce between nodes. Nothing runs.

use std::str::FromStr;

use mscclpp_collectives::{NodesModel, Pattern};

use crate::{
    Result,
    machine::Machine,
    report::{Report, Row, SizeOf, Times},
    sizes::Sizes,
};

/// Nodes and their network: `nodes=2-1024,ranks=8,network=infiniband,latency=8,message=0.5,bandwidth=45`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Asked {
    /// The smallest and the largest number of nodes; each row has twice as many as the one before.
    nodes: (u32, u32),
    model: NodesModel,
}

impl FromStr for Asked {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let fields = || text.split(',').map(|field| field.split_once('=').unwrap_or((field, "")));
        let mut model = match fields().find(|(key, _)| *key == "network").map(|(_, value)| value) {
            None | Some("infiniband") => NodesModel::INFINIBAND,
            Some("ethernet") => NodesModel::ETHERNET,
            Some(other) => return Err(format!("network={other}; give infiniband or ethernet")),
        };
        fn number<T: FromStr>(key: &str, value: &str) -> std::result::Result<T, String> {
            value.parse().map_err(|_| format!("{key}={value}; give a number"))
        }
        let mut nodes = (2, 1024);
        for (key, value) in fields() {
            match key {
                "nodes" => {
                    let (first, last) = value.split_once('-').unwrap_or((value, value));
                    nodes = (number(key, first)?, number(key, last)?);
                }
                "ranks" => model.ranks = number(key, value)?,
                "latency" => model.latency = number(key, value)?,
                "message" => model.message = number(key, value)?,
                "bandwidth" => model.bandwidth = number(key, value)?,
                "network" => {}
                _ => return Err(format!("{key}: give nodes, ranks, network, latency, message or bandwidth")),
            }
        }
        if nodes.0 < 2 || nodes.1 < nodes.0 || nodes.1 > 1 << 20 {
            return Err(format!("nodes={}-{}; give 2 or more, the smaller number first", nodes.0, nodes.1));
        }
        NodesModel { nodes: nodes.0, ..model }.predict(1).map_err(|error| error.to_string())?;
        Ok(Self { nodes, model })
    }
}

/// Makes a row for each number of nodes and each size.
pub(super) fn simulate(asked: &Asked, sizes: Sizes) -> Result<Report> {
    let mut rows = Vec::new();
    let numbers = std::iter::successors(Some(asked.nodes.0), |nodes| nodes.checked_mul(2));
    for nodes in numbers.take_while(|nodes| *nodes <= asked.nodes.1) {
        let model = NodesModel { nodes, ..asked.model };
        for bytes in sizes.iter() {
            let predicted = model.predict(bytes)?;
            let pattern = match predicted.pattern {
                Pattern::Whole => "whole",
                Pattern::Doubling => "doubling",
                Pattern::Shares => "shares",
                _ => "another pattern",
            };
            let variant = format!("{nodes} x {}, {pattern}, {} messages", model.ranks, predicted.messages);
            let row = Row::new("all-reduce", &variant, (bytes, SizeOf::Bytes), 1, 1);
            let times = Times::of(vec![predicted.time]);
            let ranks = u64::from(nodes) * u64::from(model.ranks);
            let bandwidth = times.map(|times| super::What::AllReduce.bandwidth(bytes, times.median, ranks));
            rows.push(Row { bandwidth, ..row.with(times, (None, None)) });
        }
    }
    let NodesModel { latency, message, bandwidth, .. } = asked.model;
    let notes = vec![
        "PREDICTED, not measured: nodes x ranks of each, the fastest pattern, the messages of a rank to other nodes"
            .to_owned(),
        format!("latency {latency} us, {message} us for each message, {bandwidth} GB/s for each rank"),
    ];
    Ok(Report::new(Machine::of(&[], "none: a model"), rows, notes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_and_their_network_are_read() {
        let asked: Asked = "nodes=4-64,ranks=2,network=ethernet,latency=7.5".parse().unwrap();
        let model = NodesModel { ranks: 2, latency: 7.5, ..NodesModel::ETHERNET };
        assert_eq!(asked, Asked { nodes: (4, 64), model });
        let report = simulate(&asked, Sizes { begin: 1 << 10, end: 1 << 20, factor: 1 << 10 }).unwrap();
        assert_eq!(report.rows.len(), 2 * 5);
        for (text, problem) in [
            ("nodes=1", "2 or more"),
            ("nodes=8-4", "smaller number first"),
            ("nodes=x", "nodes=x; give a number"),
            ("network=pigeons", "infiniband or ethernet"),
            ("bandwidth=0", "above 0"),
            ("rails=2", "rails: give nodes"),
        ] {
            let error = text.parse::<Asked>().unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
