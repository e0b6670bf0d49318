//! Tests of a loop that waits for sockets and for commands.

use std::{
    io::Write,
    net::{TcpListener, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use mscclpp_net::event_loop::{Commands, EventLoop, LISTENER, Ready};

const LONG: Duration = Duration::from_secs(30);

fn wait<C>(events: &EventLoop<C>, limit: Duration) -> Vec<Ready> {
    events.wait_until(Some(Instant::now() + limit)).unwrap()
}

#[test]
fn no_command_is_missed_and_their_order_is_kept() {
    const SENDERS: u64 = 4;
    const EACH: u64 = 5000;
    let commands = Arc::new(Commands::new().unwrap());
    let events = EventLoop::new(commands.clone()).unwrap();
    std::thread::scope(|scope| {
        for sender in 0..SENDERS {
            let commands = &commands;
            scope.spawn(move || (0..EACH).for_each(|number| commands.send((sender, number))));
        }
        let mut next = [0; SENDERS as usize];
        while next != [EACH; SENDERS as usize] {
            // A missed command would make this wait for the whole time.
            let began = Instant::now();
            assert_eq!(wait(&events, LONG), []);
            assert!(began.elapsed() < LONG, "stopped at {next:?}");
            for (sender, number) in commands.take() {
                assert_eq!(number, next[sender as usize]);
                next[sender as usize] += 1;
            }
        }
    });
}

#[test]
fn a_wait_ends_at_its_deadline() {
    let events = EventLoop::<()>::new(Arc::new(Commands::new().unwrap())).unwrap();
    let deadline = Instant::now() + Duration::from_millis(20);
    assert_eq!(events.wait_until(Some(deadline)).unwrap(), []);
    assert!(Instant::now() >= deadline, "the wait ended early");
    let past = Some(Instant::now());
    assert_eq!(events.wait_until(past).unwrap(), [], "a deadline that is past is no error");
}

#[test]
fn a_listener_is_told_of_once_for_each_connection() {
    let mut events = EventLoop::<()>::new(Arc::new(Commands::new().unwrap())).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connect = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let _before = connect();
    events.add_listener(&listener).unwrap();
    let news = [Ready { token: LISTENER, readable: true, writable: false }];
    assert_eq!(wait(&events, LONG), news);
    assert_eq!(wait(&events, Duration::ZERO), []);
    let later = connect();
    assert_eq!(wait(&events, LONG), news);
    assert!(events.add(&later).unwrap() > LISTENER);
}

#[test]
fn what_is_not_dealt_with_is_told_again_and_nothing_that_nobody_asked_for() {
    let mut events = EventLoop::<()>::new(Arc::new(Commands::new().unwrap())).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (here, _) = listener.accept().unwrap();
    let token = events.add(&here).unwrap();
    assert_eq!(wait(&events, Duration::ZERO), []);
    there.write_all(b"x").unwrap();
    let readable = Ready { token, readable: true, writable: false };
    for _ in 0..3 {
        assert_eq!(wait(&events, LONG), [readable]);
    }
    events.modify(&here, token, true).unwrap();
    assert_eq!(wait(&events, LONG), [Ready { writable: true, ..readable }]);
    events.modify(&here, token, false).unwrap();
    assert_eq!(wait(&events, LONG), [readable]);
    events.remove(&here);
    assert_eq!(wait(&events, Duration::ZERO), []);
}
