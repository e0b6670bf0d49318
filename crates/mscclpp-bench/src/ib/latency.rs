//! `ib-lat`: the ranks put 8 bytes with a signal to each other in turns, by the library and by bare verbs.

use std::time::Instant;

use clap::{Args, ValueEnum};
use mscclpp::channels::IbMode;

use super::{
    Choice, OnAdapter,
    ping_pong::{BareSignals, PingPong, Signals},
};
use crate::{
    Result,
    call::name_of,
    measuring::Measuring,
    ranks::{Joining, Ranks},
    report::{Row, SizeOf, Times},
    table::Table,
};

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
/// The most time that a round trip may take, as a multiple of that with bare verbs.
const GOAL: f64 = 1.15;

/// One way to play the ping-pong, and its results.
struct Contender {
    variant: String,
    ping_pong: Box<dyn PingPong>,
    /// The median round trip of each repeat.
    us: Vec<f64>,
    ok: bool,
}

pub(crate) fn run(options: &Options, joining: &Joining, table: &mut Table) -> Result<()> {
    let on = OnAdapter::join(&options.choice, &options.measuring, joining)?;
    let has_atomics = on.ranks.all(on.bare.has_atomics())?;
    let mut notes = [
        "8 bytes and a signal, there and back, host to host; a time is the median of its rounds",
        "bare verbs: the same work requests, in turns with the library in the same run; the baseline of the row behind \
         it",
        "each message is compared by whoever gets it",
    ]
    .map(str::to_owned)
    .to_vec();
    let mut contenders = Vec::new();
    for mode in Mode::value_variants().iter().filter(|mode| options.mode.is_none_or(|only| only == **mode)) {
        let (name, by_atomics) = (name_of(mode), *mode == Mode::Host);
        if by_atomics && !has_atomics {
            notes.push("host is left out: an adapter has no atomics".to_owned());
            continue;
        }
        let of_library = if by_atomics { IbMode::Host } else { IbMode::HostNoAtomic };
        contenders.push(Contender::new(format!("{name}, bare verbs"), BareSignals::new(&on, by_atomics)?));
        contenders.push(Contender::new(name, Signals::new(&on, of_library)?));
    }
    let measuring = &options.measuring;
    let rounds = measuring.rounds_or(ROUNDS);
    table.begin(on.machine(), measuring.launches() * contenders.len())?;
    for launch in 0..measuring.launches() {
        for contender in &mut contenders {
            table.progress.step(&format!("ib-lat {}", contender.variant));
            contender.once(&on.ranks, rounds, measuring.counts(launch), measuring.spoil)?;
        }
    }
    for [bare, ours] in contenders.as_chunks().0 {
        let bare_row = row(bare, rounds, None);
        let baseline = bare_row.times.map(|times| times.median);
        let ratios = bare.us.iter().zip(&ours.us).map(|(bare, us)| us / bare).collect();
        if let Some(Times { median, min, max }) = Times::of(ratios) {
            notes.push(format!(
                "{}: {median:.2} times the round trip of bare verbs, repeat by repeat {min:.2} to {max:.2}",
                ours.variant
            ));
        }
        table.push(bare_row)?;
        table.push(row(ours, rounds, baseline))?;
    }
    // No rank frees memory or closes a connection that the other still uses.
    on.ranks.meet()?;
    table.end(notes)
}

impl Contender {
    fn new(variant: String, ping_pong: impl PingPong + 'static) -> Self {
        Self { variant, ping_pong: Box::new(ping_pong), us: Vec::new(), ok: true }
    }

    /// Plays `rounds` round trips. `spoil` makes rank 1 expect wrong values.
    fn once(&mut self, ranks: &Ranks, rounds: u32, counts: bool, spoil: bool) -> Result<()> {
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
                self.ping_pong.send(ping)?;
                ok &= self.ping_pong.receive()? == pong;
                us.push(start.elapsed().as_secs_f64() * 1e6);
            } else {
                ok &= self.ping_pong.receive()? == ping ^ wrong;
                self.ping_pong.send(pong)?;
            }
        }
        self.ok &= ranks.all(ok)?;
        if counts {
            self.us.extend(Times::of(us).map(|times| times.median));
        }
        Ok(())
    }
}

fn row(Contender { variant, us, ok, .. }: &Contender, rounds: u32, baseline: Option<f64>) -> Row {
    let goal = baseline.map(|baseline| baseline * GOAL);
    let row = Row::new("ib-lat", variant, (8, SizeOf::Bytes), rounds, us.len());
    Row { baseline, goal, ..row.with(Times::of(us.clone()).filter(|_| *ok)) }
}
