//! `ib-bw`: puts from rank 0's memory to rank 1's, by the library and by bare verbs.

use clap::Args;

use super::{
    Choice, OnAdapter,
    puts::{BarePuts, QueuePuts},
};
use crate::{
    Result,
    measuring::Messages,
    one_way::{Contender, OneWay},
    puts::Puts,
    ranks::Joining,
    sizes::Sizes,
    table::Table,
};

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    messages: Messages,
    #[command(flatten)]
    choice: Choice,
}

const DEFAULT: Sizes = Sizes { begin: 64 << 10, end: 64 << 10, factor: 2 };
const MOST_ROUNDS: u32 = 5000;
/// The most bytes that one work request moves.
const LARGEST: u64 = 1 << 30;
/// The size from which messages count as large; and the part of the bare verbs' bandwidth that the library should reach with
/// them.
const LARGE: u64 = 64 << 10;
const GOAL: f64 = 0.95;

pub(crate) fn run(options: &Options, joining: &Joining, table: &mut Table) -> Result<()> {
    let Messages { sizes, measuring } = &options.messages;
    let sizes = sizes.or(DEFAULT, 1)?;
    let most = sizes.iter().max().unwrap_or(0);
    if most > LARGEST {
        return Err(format!("--end {most} is more than 1G, the most that one work request moves").into());
    }
    let on = OnAdapter::join(&options.choice, measuring, joining)?;
    let bare = BarePuts::new(&on, most)?;
    let connection = Puts::between_nodes(&on.ranks, &on.endpoint(), 1, most)?;
    let queue = QueuePuts::new(&on, most)?;
    let contenders = [
        Contender { variant: "bare verbs".to_owned(), transfer: &bare, goal: None },
        Contender { variant: "Connection::write".to_owned(), transfer: &connection, goal: Some(GOAL) },
        Contender { variant: "SendQueue".to_owned(), transfer: &queue, goal: Some(GOAL) },
    ];
    let one_way = OneWay {
        workload: "ib-bw",
        ranks: &on.ranks,
        measuring,
        baseline: "the bare verbs'",
        most_rounds: MOST_ROUNDS,
        goals_from: LARGE,
    };
    let notes = vec![
        "one way from rank 0 to rank 1, host to host; a time is that of all rounds and one flush behind them, by the \
         sender's clock"
            .to_owned(),
        format!(
            "bare verbs: one RDMA write for each round, posted by itself, at most {} under way, and a completion for \
             each quarter of these, in turns with the others in the same run; the baseline of the rows behind it",
            on.depth()
        ),
        "random data, compared by the receiver after each time".to_owned(),
    ];
    one_way.run(sizes, &contenders, on.machine(), notes, table)
}
