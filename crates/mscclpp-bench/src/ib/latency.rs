//! `ib-lat`: the ranks put 8 bytes with a signal to each other in turns, by the library and by bare verbs.

use std::time::Instant;

use clap::ValueEnum;
use mscclpp::channels::IbMode;

use super::{
    Choice, OnAdapter,
    ping_pong::{BareSignals, PingPong, Signals},
};
use crate::{call::name_of, prelude::*};

#[derive(Args)]
pub(crate) struct Options {
    /// The form in which signals travel [default: each form in turn]
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    #[command(flatten)]
    measuring: Measuring,
    #[command(flatten)]
    choice: Choice,
}

/// The forms of signals, as `MSCCLPP_IBV_MODE` names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// RDMA atomics after the data.
    Host,
    /// Immediate data that comes with the data.
    HostNoAtomic,
}

const ROUNDS: u32 = 1000;
/// The most time that a round trip may take, as a function of that with bare verbs.
const GOAL: Goal = |bare| bare * 1.15;

pub(crate) fn run(options: &Options, joining: &Joining, table: &mut Table) -> Result<()> {
    let (measuring, on) =
        (&options.measuring, OnAdapter::join(&options.choice, &options.measuring, joining)?);
    let has_atomics = on.ranks.all(on.bare.has_atomics())?;
    table.note("8 bytes and a signal, there and back, host to host; a time is the median of its rounds");
    table.note(
        "bare verbs: the same work requests, in turns with the library in the same run; the baseline of the row behind it",
    );
    table.note("each message is compared by whoever gets it");
    let rounds = measuring.rounds_or(ROUNDS);
    let mut contenders = Vec::new();
    for mode in Mode::value_variants().iter().filter(|mode| options.mode.is_none_or(|only| only == **mode)) {
        let (name, by_atomics) = (name_of(mode), *mode == Mode::Host);
        if by_atomics && !has_atomics {
            table.note("host is left out: an adapter has no atomics");
            continue;
        }
        let of_library = if by_atomics { IbMode::Host } else { IbMode::HostNoAtomic };
        let bare: Box<dyn PingPong> = Box::new(BareSignals::new(&on, by_atomics)?);
        let ours = Box::new(Signals::new(&on, of_library)?);
        let first = contenders.len();
        for (variant, mut ping_pong, beside) in
            [(format!("{name}, bare verbs"), bare, None), (name, ours, Some((first, Some(GOAL))))]
        {
            let row = Row::new("ib-lat", variant, (8, SizeOf::Bytes), rounds);
            let ranks = &on.ranks;
            let once = Box::new(move |time: Time| once(&mut *ping_pong, ranks, rounds, time.spoils));
            contenders.push(Contender { per: 1.0, bus: None, beside, ..Contender::new(row, once) });
        }
    }
    if contenders.is_empty() {
        return Err("--mode host needs atomics, which an adapter does not have".into());
    }
    table.begin(on.machine(), 1)?;
    let measured = table.measure_in_turns(measuring.repeats, Some(&on.ranks), contenders)?;
    for [(_, bare), (ours, times)] in measured.as_chunks().0 {
        // Times are missing if a result was wrong, and the others are no pairs then.
        let are_right = ours.baseline.is_some() && ours.times.is_some();
        if let Some(Times { median, min, max }) = Times::of_ratios(times, bare).filter(|_| are_right) {
            table.note(format!(
                "{}: {median:.2} times the round trip of bare verbs, repeat by repeat {min:.2} to {max:.2}",
                ours.variant
            ));
        }
    }
    measured.into_iter().try_for_each(|(row, _)| table.push(row))?;
    // No rank frees memory or closes a connection that the other still uses.
    on.ranks.meet()
}

/// Plays `rounds` round trips, and returns their median. `spoil` makes rank 1 expect wrong values.
fn once(ping_pong: &mut dyn PingPong, ranks: &Ranks, rounds: u32, spoil: bool) -> Result<Option<f64>> {
    let starts = ranks.rank == 0;
    // The first value that rank 0 sends; each message is one more than the last.
    let seed = ranks.seed_of_rank_0()?;
    let wrong = u64::from(spoil && !starts);
    let mut ok = true;
    let mut us = Vec::with_capacity(rounds as usize);
    ranks.meet()?;
    for round in 0..u64::from(rounds) {
        let [ping, pong] = [seed.wrapping_add(2 * round), seed.wrapping_add(2 * round + 1)];
        if starts {
            let start = Instant::now();
            ping_pong.send(ping)?;
            ok &= ping_pong.receive()? == pong;
            us.push(start.elapsed().as_secs_f64() * 1e6);
        } else {
            ok &= ping_pong.receive()? == ping ^ wrong;
            ping_pong.send(pong)?;
        }
    }
    // Rank 1 takes no times.
    Ok(ok.then(|| Times::of(us).map_or(0.0, |times| times.median)))
}
