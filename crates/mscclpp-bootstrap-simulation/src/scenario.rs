//! The scenario of a seed: how many ranks there are, what they do, and what goes wrong.

use std::net::SocketAddr;
use std::time::Duration;

use crate::dice::Dice;
use crate::fault::Fault;
use crate::program::Step;
use crate::starting::{OTHER_PORT, PORT, plan_of, second_root, starter};
use crate::stranger::Stranger;
use crate::world::{Event, Lives, Network, World};
use mscclpp_bootstrap::protocol::handshake::JobKey;
use mscclpp_bootstrap::protocol::hello::Process;

/// The kind of a scenario: what goes wrong, and what is to be expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Nothing goes wrong, and all ranks do everything.
    Calm,
    /// One or two processes are killed.
    Killed,
    /// A node is gone.
    Vanished,
    /// Some ranks leave, and later one of the others is killed.
    LeftAndKilled,
    /// A connection breaks.
    Broken,
    /// A rank never comes.
    Absent,
    /// Some processes are stopped for some seconds, which must have no effect.
    Stopped,
    /// The network splits into two parts.
    Parted,
    /// A caller aborts.
    Aborted,
    /// Processes are killed and replaced, and the job forms again.
    Replaced,
    /// Two processes come as one rank, of one job or of two at one address.
    Clashing,
}

const KINDS: [Kind; 10] = [
    Kind::Calm,
    Kind::Killed,
    Kind::Vanished,
    Kind::LeftAndKilled,
    Kind::Broken,
    Kind::Absent,
    Kind::Stopped,
    Kind::Parted,
    Kind::Aborted,
    Kind::Replaced,
];

pub(super) struct Scenario {
    pub(super) kind: Kind,
    pub(super) n: usize,
    pub(super) world: World,
    /// The rank that never comes.
    pub(super) absent: Option<usize>,
    /// The ranks that leave early.
    pub(super) leavers: Vec<usize>,
    /// The rank that comes twice, and its other process.
    pub(super) twice: Option<(usize, usize)>,
}

/// The time for which ranks work before they leave: long enough for a fault to happen meanwhile.
const LIFE: Duration = Duration::from_secs(6);

impl Scenario {
    /// Makes the scenario of a seed, with 2 to `most_ranks` ranks.
    pub(super) fn of_seed(seed: u64, most_ranks: usize) -> Self {
        assert!(most_ranks >= 2, "{most_ranks} ranks; a job that can go wrong has two at least");
        let mut dice = Dice::new(seed);
        let kind = match KINDS[dice.below(KINDS.len())] {
            Kind::Calm if dice.percent(50) => Kind::Clashing,
            kind => kind,
        };
        // Most jobs are small: they are the fastest, and reveal the most.
        let most = if dice.percent(80) { most_ranks.min(9) } else { most_ranks };
        let n = 2 + dice.below(most - 1);
        let ms = Duration::from_millis;
        let network = Network {
            least_latency: Duration::from_micros(50),
            most_latency: [ms(1), ms(10), ms(100)][dice.below(3)],
            buffer: [4 << 10, 256 << 10, 1 << 20][dice.below(3)],
            busy: [Duration::ZERO, Duration::from_micros(20), ms(1)][dice.below(3)],
            cuts_writes: true,
        };
        // The numbers of strangers that connect to ranks, and of strangers at addresses where ranks look for rank 0.
        let (visitors, hosts) = (dice.below(4), if dice.percent(30) { 1 + dice.below(2) } else { 0 });
        let others = visitors + hosts + usize::from(kind == Kind::Clashing);
        let mut world = World::new(dice.word(), network, n + others);
        let keyed = hosts > 0 || dice.percent(70);
        let key = if keyed { JobKey::of_unique_id([9; 32]) } else { JobKey::none() };
        let root = SocketAddr::new(world.nodes[0].ip, PORT);
        for node in n..n + visitors {
            // Without a key, the only strangers are processes that do not know the protocol.
            let at = dice.between(Duration::ZERO, LIFE);
            let stranger = Stranger::visitor(&mut dice, root, at, n, keyed);
            world.schedule(stranger.visits_at().unwrap_or_default(), Event::Wake(node));
            world.nodes[node].stranger = Some(stranger);
        }
        let mut candidates = vec![root];
        for node in n + visitors..n + visitors + hosts {
            let address = SocketAddr::new(world.nodes[node].ip, PORT);
            world.nodes[node].stranger = Some(Stranger::host(&mut dice));
            world.listen(node, address);
            candidates.insert(dice.below(candidates.len() + 1), address);
        }
        if dice.percent(30) {
            // Rank 0 has another address.
            candidates.insert(dice.below(candidates.len() + 1), SocketAddr::new(root.ip(), OTHER_PORT));
        }
        let late = [ms(0), ms(10), ms(1500)][dice.below(3)];
        let by_address = !keyed || dice.percent(50) || kind == Kind::Replaced;
        for rank in 0..n {
            let at = dice.between(Duration::ZERO, late);
            let mut plan = plan_of(rank, n, key.clone(), by_address, world.instant() + at);
            plan.last_generation = (kind == Kind::Replaced).then_some(0);
            world.schedule(at, Event::Start(rank, starter(plan, root, candidates.clone())));
        }
        let mut this = Self { kind, n, world, absent: None, leavers: Vec::new(), twice: None };
        this.plan_calls(&mut dice);
        if kind == Kind::Clashing {
            let latest = [late, LIFE][dice.below(2)];
            let at = dice.between(Duration::ZERO, latest);
            let (rank, other) = (dice.below(n), n + others - 1);
            let mut plan = plan_of(rank, n, key.clone(), by_address, this.world.instant() + at);
            plan.process = Process::named("elsewhere", 1);
            plan.job = plan.job.filter(|_| !by_address);
            let starts = if rank == 0 { second_root(plan, root) } else { starter(plan, root, candidates) };
            this.world.schedule(at, Event::Start(other, starts));
            let program = &this.world.nodes[rank].program;
            this.world.nodes[other].program = program.again(program.steps.clone());
            this.twice = Some((rank, other));
        }
        if kind == Kind::Replaced {
            this.plan_lives(root, &key, &mut dice);
        }
        this.plan_fault(&mut dice);
        this
    }

    /// Gives all ranks the same calls, and matching messages.
    fn plan_calls(&mut self, dice: &mut Dice) {
        let n = self.n;
        let mut steps: Vec<Vec<Step>> = vec![Vec::new(); n];
        let phases = 1 + dice.below(4);
        for phase in 0..phases {
            match dice.below(5) {
                0 => all(&mut steps, &Step::AllGather),
                1 => all(&mut steps, &Step::Barrier),
                2 => all(&mut steps, &Step::Broadcast { root: dice.below(n) }),
                3 => {
                    let members: Vec<usize> = (0..n).filter(|_| dice.percent(50)).collect();
                    for &member in &members {
                        steps[member].push(Step::GroupBarrier(members.clone()));
                    }
                }
                _ => messages(&mut steps, phase as u64, dice),
            }
            all(&mut steps, &Step::Sleep(dice.between(Duration::ZERO, LIFE / phases as u32)));
        }
        if dice.percent(50) {
            all(&mut steps, &Step::Barrier);
        } else {
            // Some ranks leave while their last messages are on their way.
            messages(&mut steps, phases as u64, dice);
        }
        let pause = [Duration::ZERO, Duration::from_millis(20)][dice.below(2)];
        for (rank, steps) in steps.into_iter().enumerate() {
            let program = &mut self.world.nodes[rank].program;
            (program.rank, program.n, program.pause) = (rank, n, pause);
            program.steps = steps.into();
            // The sockets of these ranks hold more than the window of messages, so a notice always finds room. Only
            // then is a process that ends at once sure to have passed it on.
            program.exits_on_error = dice.percent(30) && self.world.network.buffer > 128 << 10;
        }
    }

    /// Makes all ranks do the same again in each generation. Nobody leaves before all know who is gone.
    fn plan_lives(&mut self, root: SocketAddr, key: &JobKey, dice: &mut Dice) {
        let delay = [Duration::ZERO, Duration::from_millis(300), Duration::from_secs(3)][dice.below(3)];
        for node in &mut self.world.nodes[..self.n] {
            node.program.exits_on_error = false;
            node.program.steps.extend([Step::Barrier, Step::Sleep(3 * LIFE), Step::Barrier]);
            let steps = node.program.steps.clone();
            let (formed, key) = (Vec::new(), key.clone());
            node.lives = Some(Lives { left: 8, root, key, steps, delay, formed, processes: 0 });
        }
    }

    fn plan_fault(&mut self, dice: &mut Dice) {
        let n = self.n;
        // The fault often happens just when the job forms.
        let span = if dice.percent(50) { Duration::from_millis(300) } else { LIFE };
        let at = dice.between(Duration::ZERO, span);
        let rank = dice.below(n);
        let mut faults = Vec::new();
        let mut fault = |at, fault| faults.push((at, fault));
        match self.kind {
            Kind::Calm | Kind::Clashing => {}
            Kind::Killed => {
                fault(at, Fault::Kill(rank));
                if dice.percent(30) {
                    fault(at + dice.between(Duration::ZERO, LIFE), Fault::Kill(dice.below(n)));
                }
            }
            Kind::Replaced => {
                for _ in 0..=dice.below(3) {
                    fault(dice.between(Duration::ZERO, span), Fault::Kill(dice.below(n)));
                }
            }
            Kind::Vanished => fault(at, Fault::Vanish(rank)),
            Kind::Broken => fault(at, Fault::Break(dice.below(1000))),
            Kind::Stopped => {
                for _ in 0..=dice.below(3) {
                    let time = dice.between(Duration::ZERO, Duration::from_secs(8));
                    // A fault of rank 0 concerns all ranks, so it is frequent.
                    let who = if dice.percent(40) { 0 } else { dice.below(n) };
                    fault(dice.between(Duration::ZERO, span), Fault::Stop(who, time));
                }
            }
            Kind::Parted => fault(at, Fault::Cut((0..n).map(|_| dice.percent(50)).collect())),
            Kind::Aborted => fault(at, Fault::Abort(rank)),
            Kind::Absent => {
                self.absent = Some(rank);
                self.world.nodes[rank].dead = true;
            }
            Kind::LeftAndKilled => {
                // The ranks that stay only wait, for a message that never comes.
                let stays = |dice: &mut Dice| dice.percent(50);
                let mut stay: Vec<usize> = (0..n).filter(|_| stays(dice)).collect();
                stay.extend(
                    (0..n).filter(|rank| stay.len() < 2 && !stay.contains(rank)).take(2).collect::<Vec<_>>(),
                );
                stay.sort_unstable();
                stay.dedup();
                let victim = stay[dice.below(stay.len())];
                // Or they wait for nobody, and have only the connections of the tree.
                let silent = dice.percent(60);
                for &rank in &stay {
                    let others: Vec<usize> = stay.iter().copied().filter(|&other| other != rank).collect();
                    let from = others[dice.below(others.len())];
                    let wait = match silent {
                        true => Step::Sleep(Duration::from_secs(250)),
                        false => Step::Receive { from, tag: 77, bytes: vec![1] },
                    };
                    let steps = &mut self.world.nodes[rank].program.steps;
                    *steps = [Step::Barrier, wait].into();
                }
                self.leavers = (0..n).filter(|rank| !stay.contains(rank)).collect();
                for &rank in &self.leavers {
                    let moment = dice.between(Duration::ZERO, Duration::from_secs(2));
                    let steps = &mut self.world.nodes[rank].program.steps;
                    *steps = [Step::Barrier, Step::Sleep(moment)].into();
                }
                // By then all ranks are connected again. A rank finds out one by one which of those above it have
                // left.
                fault(Duration::from_secs(150), Fault::Kill(victim));
            }
        }
        for (at, fault) in faults {
            self.world.schedule(at, Event::Fault(fault));
        }
    }
}

fn all(steps: &mut [Vec<Step>], step: &Step) {
    steps.iter_mut().for_each(|steps| steps.push(step.clone()));
}

/// Adds messages between some pairs of ranks, often both ways at once. Each rank sends everything that it has to
/// send, and then receives, with the streams in any order.
fn messages(steps: &mut [Vec<Step>], phase: u64, dice: &mut Dice) {
    let n = steps.len();
    let mut receives: Vec<Vec<Step>> = vec![Vec::new(); n];
    for pair in 0..1 + dice.below(n.min(8)) {
        let (one, other, tag) = (dice.below(n), dice.below(n), 10 * phase + dice.below(3) as u64);
        if one == other {
            continue;
        }
        let ways: &[(usize, usize)] =
            if dice.percent(70) { &[(one, other), (other, one)] } else { &[(one, other)] };
        for &(from, to) in ways {
            for number in 0..1 + dice.below(4) {
                let size = if dice.percent(10) { dice.below(200_000) } else { dice.below(300) };
                let mut bytes = vec![number as u8; size];
                bytes.extend([pair as u8, number as u8]);
                steps[from].push(Step::Send { to, tag, bytes: bytes.clone() });
                receives[to].push(Step::Receive { from, tag, bytes });
            }
        }
    }
    for (steps, receives) in steps.iter_mut().zip(receives) {
        steps.extend(receives);
    }
}
