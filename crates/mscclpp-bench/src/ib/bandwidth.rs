//! `ib-bw`: puts from rank 0's memory to rank 1's, by the library and by bare verbs.

use super::{
    Choice, OnAdapter,
    puts::{BarePuts, QueuePuts},
};
use crate::{one_way::OneWay, prelude::*, puts::Puts};

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
/// The size from which messages count as large; and the time that the library should take with them: the bare verbs', divided
/// by the part of their bandwidth that is the goal.
const LARGE: u64 = 64 << 10;
const GOAL: Goal = |bare| bare / 0.95;

pub(crate) fn run(options: &Options, joining: &Joining, table: &mut Table) -> Result<()> {
    let Messages { sizes, measuring } = &options.messages;
    let sizes = sizes.or(DEFAULT, 1)?;
    let most = sizes.end;
    if most > LARGEST {
        return Err(format!("--end {most} is more than 1G, the most that one work request moves").into());
    }
    let on = OnAdapter::join(&options.choice, measuring, joining)?;
    let bare = BarePuts::new(&on, most)?;
    let connection = Puts::between_nodes(&on.ranks, &on.endpoint(), 1, most)?;
    let queue = QueuePuts::new(&on, most)?;
    let one_way = OneWay {
        workload: "ib-bw",
        ranks: &on.ranks,
        measuring,
        baseline: "the bare verbs'",
        most_rounds: MOST_ROUNDS,
        goals_from: LARGE,
    };
    table.note(
        "one way from rank 0 to rank 1, host to host; a time is that of all rounds and one flush behind them, by the \
         sender's clock",
    );
    table.note(format!(
        "bare verbs: one RDMA write for each round, posted by itself, at most {} under way, and a completion for each \
         quarter of these, in turns with the others in the same run; the baseline of the rows behind it",
        on.depth()
    ));
    table.note("random data, compared by the receiver after each time");
    let transfers = [
        ("bare verbs".to_owned(), &bare as _, None),
        ("Connection::write".to_owned(), &connection as _, Some(GOAL)),
        ("SendQueue".to_owned(), &queue as _, Some(GOAL)),
    ];
    one_way.run(sizes, &transfers, on.machine(), table)
}
