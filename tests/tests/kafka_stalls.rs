//! A broker that takes the connection and then stops reading, and one that is well: what the one cannot take must not cost what the
//! other has taken. The brokers are as much of a protocol as the publisher needs; no real one can be had that behaves so.

use anyhow::{Context, Result};
use outhaul_tests::outbox::DELIVERED;
use outhaul_tests::rig::{Config, Rig};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// More than the buffers of the system hold for a connection.
const LARGE: usize = 7 << 20;

/// Two brokers: the first leads the topic `small`, the second `large`.
struct Brokers {
    ports: [u16; 2],
    /// Produce requests that the first one has answered.
    produced: AtomicUsize,
}

fn start() -> Result<Arc<Brokers>> {
    let listeners = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
    let ports = [listeners[0].local_addr()?.port(), listeners[1].local_addr()?.port()];
    let brokers = Arc::new(Brokers { ports, produced: AtomicUsize::new(0) });
    for (listener, reads) in listeners.into_iter().zip([true, false]) {
        let brokers = Arc::clone(&brokers);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let brokers = Arc::clone(&brokers);
                // Whoever hangs up ends it.
                std::thread::spawn(move || brokers.serve(stream, reads));
            }
        });
    }
    Ok(brokers)
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend(i16::try_from(text.len()).unwrap().to_be_bytes());
    out.extend(text.as_bytes());
}

fn numbers(out: &mut Vec<u8>, numbers: &[i32]) {
    numbers.iter().for_each(|number| out.extend(number.to_be_bytes()));
}

impl Brokers {
    fn serve(&self, mut stream: TcpStream, reads: bool) -> Result<()> {
        let mut asked = 0;
        loop {
            if !reads && asked == 2 {
                // It has said which versions it speaks, and reads no further.
                std::thread::park();
                continue;
            }
            let mut length = [0; 4];
            stream.read_exact(&mut length)?;
            let mut frame = vec![0; u32::from_be_bytes(length).try_into()?];
            stream.read_exact(&mut frame)?;
            asked += 1;
            let answer = self.answer(&frame);
            stream.write_all(&u32::try_from(answer.len())?.to_be_bytes())?;
            stream.write_all(&answer)?;
        }
    }

    /// In the oldest versions that the publisher speaks.
    fn answer(&self, frame: &[u8]) -> Vec<u8> {
        let mut out = frame[4..8].to_vec();
        match frame[1] {
            // ApiVersions: Produce 3, Metadata 4, InitProducerId 0; of itself version 0, and error 35 for any other.
            18 => {
                out.extend(if frame[3] == 0 { [0, 0] } else { [0, 35] });
                numbers(&mut out, &[3]);
                out.extend([[0, 0, 0, 3, 0, 3], [0, 3, 0, 4, 0, 4], [0, 22, 0, 0, 0, 0]].concat());
            }
            3 => {
                numbers(&mut out, &[0, 2]);
                for (id, port) in [1, 2].into_iter().zip(self.ports) {
                    numbers(&mut out, &[id]);
                    text(&mut out, "127.0.0.1");
                    numbers(&mut out, &[port.into()]);
                    out.extend([0xff; 2]);
                }
                out.extend([0xff; 6]);
                numbers(&mut out, &[2]);
                for (leader, name) in [(1, "small"), (2, "large")] {
                    out.extend([0; 2]);
                    text(&mut out, name);
                    out.push(0);
                    numbers(&mut out, &[1]);
                    out.extend([0; 2]);
                    numbers(&mut out, &[0, leader, 1, leader, 1, leader]);
                }
            }
            22 => out.extend([0; 16]),
            0 => {
                self.produced.fetch_add(1, Ordering::Relaxed);
                numbers(&mut out, &[1]);
                text(&mut out, "small");
                numbers(&mut out, &[1, 0]);
                out.extend([0; 18]);
                numbers(&mut out, &[0]);
            }
            other => panic!("request {other}"),
        }
        out
    }
}

#[test]
fn a_broker_that_stops_reading_costs_only_its_own_messages() -> Result<()> {
    let brokers = start()?;
    let [first, second] = brokers.ports;
    let config = Config::parse(&format!(
        r#"
        [log]
        format = "json"
        [admin]
        listen = "127.0.0.1:0"
        [databases.main]
        url = "sqlite:outbox.db"
        [storages.outbox]
        plugin = "sqlite-storage"
        database = "main"
        config = {{ table = "outbox" }}
        [publishers.events]
        plugin = "kafka-publisher"
        allow_hosts = ["127.0.0.1:{first}", "127.0.0.1:{second}"]
        batch_bytes = "16MiB"
        config = {{ brokers = ["127.0.0.1:{first}"], max_request_bytes = "8MiB" }}
        [[relays]]
        name = "orders"
        storage = "outbox"
        routes = [ {{ topic = "*", publisher = "events" }} ]
        max_attempts = 1
        publish_timeout = "4s"
        "#
    ))?;
    let rig = Rig::new(&config)?;
    let large = rig.outbox()?.add("large", Some("a"), &vec![b'x'; LARGE])?;
    let small = rig.outbox()?.add("small", Some("b"), b"y")?;
    rig.drain()?;
    let row = rig.outbox()?.row(&large)?;
    let reason = row.last_error.context("a reason")?;
    assert!(reason.contains("no answer to the Produce request in time"), "{reason}");
    assert_eq!(rig.outbox()?.row(&small)?.status, DELIVERED);
    assert_eq!(brokers.produced.load(Ordering::Relaxed), 1, "it was sent once");
    Ok(())
}
