//! Tests of connections that do not belong to a job, while it forms: scanners, garbage, silence, and ten thousand
//! malformed attempts. The job forms, nothing panics, and no large allocation is made because of a length that a
//! stranger wrote.

mod ranks;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mscclpp_bootstrap::collective::call;
use mscclpp_bootstrap::protocol::hello::PROTOCOL_VERSION;
use mscclpp_bootstrap::{Bootstrap, Env, TcpBootstrap, fuzzing};
use mscclpp_net::frame::encode;
use mscclpp_test_support::{Noting, Random};
use ranks::{PATIENCE, in_threads};

/// The largest allocation.
static LARGEST: AtomicUsize = AtomicUsize::new(0);

extern "C" fn note(bytes: usize) {
    LARGEST.fetch_max(bytes, Ordering::Relaxed);
}

#[global_allocator]
static ALLOCATOR: Noting = Noting(note);

/// Makes a malformed attempt to join.
fn malformed(round: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = fuzzing::stale_hello(PROTOCOL_VERSION, 3, 1, round.is_multiple_of(2));
    match round % 8 {
        // These are a flipped bit, a wrong version, an unknown kind, and a huge length.
        0 => {
            let bit = random.below(8 * bytes.len());
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        1 => bytes = fuzzing::stale_hello(random.word() as u32, 3, 1, true),
        2 => bytes[2] = random.word() as u8,
        3 => bytes[4..8].copy_from_slice(&(u32::MAX - random.below(1000) as u32).to_le_bytes()),
        // These are a frame cut short, random bytes, a scanner's request, and a well-formed hello whose proof fits no
        // challenge.
        4 => bytes.truncate(random.below(bytes.len())),
        5 => {
            let length = 1 + random.below(500);
            bytes = random.bytes(length);
        }
        6 => bytes = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        _ => {}
    }
    bytes
}

#[test]
fn a_job_forms_among_strangers() {
    let id = TcpBootstrap::create_unique_id_in(&Env::default()).unwrap();
    let port = id.addresses()[0].port();
    let at = SocketAddr::new([127, 0, 0, 1].into(), port);
    let over = AtomicBool::new(false);
    // The early ranks must wait through ten thousand attempts.
    let patience = 20 * PATIENCE;
    let connect = |rank| TcpBootstrap::builder(rank, 3).env(Env::default()).timeout(patience).connect(id);
    let job = std::thread::scope(|scope| {
        let early = [0, 1].map(|rank| scope.spawn(move || connect(rank)));
        // Some strangers say nothing, and are more than are tolerated at once; some say a byte now and then.
        scope.spawn(|| {
            let silent: Vec<TcpStream> = (0..400).filter_map(|_| TcpStream::connect(at).ok()).collect();
            let slow: Vec<TcpStream> = (0..20).filter_map(|_| TcpStream::connect(at).ok()).collect();
            for byte in fuzzing::stale_hello(PROTOCOL_VERSION, 3, 2, true) {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                for mut stream in &slow {
                    let _ = stream.write_all(&[byte]);
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            drop(silent);
        });
        LARGEST.store(0, Ordering::Relaxed);
        let attempts = in_threads(0..4, |thread| {
            let mut random = Random::with_seed(thread as u64);
            let mut made = 0;
            for round in 0..2_500 {
                let Ok(mut stream) = TcpStream::connect(at) else { continue };
                made += 1;
                let _ = stream.write_all(&malformed(round, &mut random));
                if round % 16 < 8 {
                    // Some wait for an answer, or for the end; the others are gone at once.
                    let _ = stream.shutdown(Shutdown::Write);
                    let _ = stream.set_read_timeout(Some(PATIENCE));
                    let _ = stream.read_to_end(&mut Vec::new());
                }
            }
            made
        });
        assert_eq!(attempts.iter().sum::<usize>(), 10_000);
        assert!(
            LARGEST.load(Ordering::Relaxed) <= 1 << 20,
            "{} bytes at once",
            LARGEST.load(Ordering::Relaxed)
        );
        assert!(early.iter().all(|rank| !rank.is_finished()), "the job waits for its last rank, undisturbed");
        let last = connect(2).unwrap();
        over.store(true, Ordering::Relaxed);
        let mut job: Vec<TcpBootstrap> = early.map(|rank| rank.join().unwrap().unwrap()).into();
        job.push(last);
        job
    });
    // Strangers are also refused once the job has formed.
    for round in 0..200 {
        let Ok(mut stream) = TcpStream::connect(at) else { continue };
        let _ = stream.write_all(&malformed(round, &mut Random::with_seed(7 + round as u64)));
    }
    in_threads(0..3, |rank| job[rank].barrier().unwrap());
    assert!(job.iter().all(|rank| rank.failure().is_none()));
}

#[test]
fn a_job_without_a_key_forms_among_scanners() {
    let at: SocketAddr = format!("127.0.0.1:{}", ranks::free_port()).parse().unwrap();
    std::thread::scope(|scope| {
        let connect = |rank| ranks::connect(rank, 3, at.to_string(), PATIENCE);
        let early = [0, 1].map(|rank| scope.spawn(move || connect(rank)));
        let mut random = Random::with_seed(3);
        for round in 0..1_000 {
            if let Ok(mut stream) = TcpStream::connect(at) {
                let _ = stream.write_all(&malformed(round, &mut random));
            }
        }
        let mut job = vec![connect(2).unwrap()];
        job.extend(early.map(|rank| rank.join().unwrap().unwrap()));
        in_threads(0..3, |i| job[i].barrier().unwrap());
    });
}

#[test]
fn parsers_take_anything() {
    let mut random = Random::with_seed(11);
    for round in 0..20_000 {
        let n = random.below(400);
        let bytes = random.bytes(n);
        let framed = encode((round % 40) as u8, &bytes);
        for input in [&bytes, &framed] {
            fuzzing::stranger(input);
            fuzzing::answer(input);
            fuzzing::member(input);
            fuzzing::table(input);
            call::check(input);
            fuzzing::address(&String::from_utf8_lossy(input));
        }
    }
}
