//! `all-reduce --simulate`: what an all_reduce between hosts takes by the library's model. Nothing runs.

use std::str::FromStr;

use mscclpp_collectives::{HostsModel, Pattern};

use crate::{
    Result,
    machine::Machine,
    report::{Report, Row, SizeOf, Times},
    sizes::Sizes,
};

/// Hosts and their network: `hosts=2-1024,ranks=8,network=infiniband,latency=8,message=0.5,bandwidth=45`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Asked {
    /// From so many hosts to so many, twice as many each time.
    hosts: (u32, u32),
    model: HostsModel,
}

impl FromStr for Asked {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let fields = || text.split(',').map(|field| field.split_once('=').unwrap_or((field, "")));
        let mut model = match fields().find(|(key, _)| *key == "network").map(|(_, value)| value) {
            None | Some("infiniband") => HostsModel::INFINIBAND,
            Some("ethernet") => HostsModel::ETHERNET,
            Some(other) => return Err(format!("network={other}; give infiniband or ethernet")),
        };
        fn number<T: FromStr>(key: &str, value: &str) -> std::result::Result<T, String> {
            value.parse().map_err(|_| format!("{key}={value}; give a number"))
        }
        let mut hosts = (2, 1024);
        for (key, value) in fields() {
            match key {
                "hosts" => {
                    let (first, last) = value.split_once('-').unwrap_or((value, value));
                    hosts = (number(key, first)?, number(key, last)?);
                }
                "ranks" => model.ranks = number(key, value)?,
                "latency" => model.latency = number(key, value)?,
                "message" => model.message = number(key, value)?,
                "bandwidth" => model.bandwidth = number(key, value)?,
                "network" => {}
                _ => return Err(format!("{key}: give hosts, ranks, network, latency, message or bandwidth")),
            }
        }
        if hosts.0 < 2 || hosts.1 < hosts.0 || hosts.1 > 1 << 20 {
            return Err(format!("hosts={}-{}; give 2 or more, the smaller number first", hosts.0, hosts.1));
        }
        HostsModel { hosts: hosts.0, ..model }.predict(1).map_err(|error| error.to_string())?;
        Ok(Self { hosts, model })
    }
}

/// A row for each number of hosts and size.
pub(super) fn simulate(asked: &Asked, sizes: Sizes) -> Result<Report> {
    let mut rows = Vec::new();
    let numbers = std::iter::successors(Some(asked.hosts.0), |hosts| hosts.checked_mul(2));
    for hosts in numbers.take_while(|hosts| *hosts <= asked.hosts.1) {
        let model = HostsModel { hosts, ..asked.model };
        for bytes in sizes.iter() {
            let predicted = model.predict(bytes)?;
            let pattern = match predicted.pattern {
                Pattern::Whole => "whole",
                Pattern::Doubling => "doubling",
                Pattern::Shares => "shares",
                _ => "another way",
            };
            let variant = format!("{hosts} x {}, {pattern}, {} messages", model.ranks, predicted.messages);
            let row = Row::new("all-reduce", &variant, (bytes, SizeOf::Bytes), 1, 1);
            let times = Times::of(vec![predicted.time]);
            let ranks = u64::from(hosts) * u64::from(model.ranks);
            let bandwidth = times.map(|times| super::What::AllReduce.bandwidth(bytes, times.median, ranks));
            rows.push(Row { bandwidth, ..row.with(times, (None, None)) });
        }
    }
    let HostsModel { latency, message, bandwidth, .. } = asked.model;
    let notes = vec![
        "PREDICTED, not measured: hosts x ranks of each, the pattern that is fastest, the messages of a rank to other hosts"
            .to_owned(),
        format!("latency {latency} us, {message} us for each message, {bandwidth} GB/s for each rank"),
    ];
    Ok(Report::new(Machine::of(&[], "none: a model"), rows, notes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_their_network_are_read() {
        let asked: Asked = "hosts=4-64,ranks=2,network=ethernet,latency=7.5".parse().unwrap();
        let model = HostsModel { ranks: 2, latency: 7.5, ..HostsModel::ETHERNET };
        assert_eq!(asked, Asked { hosts: (4, 64), model });
        let report = simulate(&asked, Sizes { begin: 1 << 10, end: 1 << 20, factor: 1 << 10 }).unwrap();
        assert_eq!(report.rows.len(), 2 * 5);
        for (text, problem) in [
            ("hosts=1", "2 or more"),
            ("hosts=8-4", "smaller number first"),
            ("hosts=x", "hosts=x; give a number"),
            ("network=pigeons", "infiniband or ethernet"),
            ("bandwidth=0", "above 0"),
            ("rails=2", "rails: give hosts"),
        ] {
            let error = text.parse::<Asked>().unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
