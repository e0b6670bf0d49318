//! Tests over CUDA IPC, of processes that are this program, started again, and of users. The conformance suite, the tests
//! with captures of their own, and the one that counts resources are programs of their own.

mod full_queue;
mod killed_peer;
mod other_user;
mod plain_memory;
mod unreachable;

use std::process::ExitCode;

use libtest_mimic::Arguments;
use mscclpp_test_support::child;

fn main() -> ExitCode {
    if let Some(role) = child::role() {
        match &*role[0] {
            full_queue::ROLE => full_queue::a_queue_takes_as_many_operations_as_it_holds(),
            killed_peer::PEER => killed_peer::be_the_peer(),
            plain_memory::PEER => plain_memory::be_the_peer(),
            unreachable::ROLE => unreachable::run(&role[1]),
            other => panic!("no role {other}"),
        }
        return ExitCode::SUCCESS;
    }
    let mut trials = killed_peer::trials();
    trials.extend(other_user::trials());
    trials.extend(unreachable::trials());
    trials.extend([full_queue::trial(), plain_memory::trial()]);
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
