use super::*;
use crate::links::{Links, Options, tests::PROTOCOL};

fn service() -> (Arc<Links>, Service, std::net::SocketAddr) {
    let links = Links::start(PROTOCOL, Options::default()).unwrap();
    let listener = socket::listen("127.0.0.1:0".parse().unwrap(), None).unwrap();
    let address = listener.local_addr().unwrap();
    let service = Service::new(links.shared.clone(), listener, None).unwrap();
    (links, service, address)
}

fn accept_from(service: &mut Service, last: std::net::SocketAddr) {
    let deadline = Instant::now() + std::time::Duration::from_secs(30);
    while service.handshakes.values().last().is_none_or(|accepted| accepted.address != last) {
        assert!(Instant::now() < deadline, "the last one is not accepted");
        service.accept(Instant::now());
    }
}

#[test]
fn strangers_who_say_nothing_make_room_the_oldest_first() {
    let (_links, mut service, address) = service();
    let strangers: Vec<_> =
        (0..MAX_HANDSHAKES + 5).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
    let addresses: Vec<_> = strangers.iter().map(|stranger| stranger.local_addr().unwrap()).collect();
    accept_from(&mut service, addresses[MAX_HANDSHAKES + 4]);
    let here: Vec<_> = service.handshakes.values().map(|accepted| accepted.address).collect();
    assert_eq!(here, addresses[5..]);
}

#[test]
fn who_says_nothing_is_sent_away_in_the_end() {
    let (_links, mut service, address) = service();
    let silent = std::net::TcpStream::connect(address).unwrap();
    accept_from(&mut service, silent.local_addr().unwrap());
    let (token, deadline) =
        service.handshakes.first_key_value().map(|(token, accepted)| (*token, accepted.deadline)).unwrap();
    assert_eq!(service.wake_at(), Some(deadline));
    let ready = [Ready { token, readable: true, writable: false }];
    service.advance_handshakes(&ready, deadline - std::time::Duration::from_millis(1));
    assert_eq!(service.handshakes.len(), 1);
    service.advance_handshakes(&[], deadline);
    assert!(service.handshakes.is_empty());
}
