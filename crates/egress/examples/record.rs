//! What recording costs whoever records: `cargo run --release -p moltis-egress --example record`.

use std::time::{Duration, Instant};

use moltis_egress::audit::AuditSettings;
use moltis_egress::{Action, Audit, AuditLog, Entry, Event, Protocol, Source};

fn main() {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("usage: record FOLDER");
        std::process::exit(2);
    };
    for (what, settings, pause, count) in [
        ("in a row", AuditSettings { queue: 1 << 20, ..AuditSettings::default() }, Duration::ZERO, 200_000),
        (
            "in a row, with a ring",
            AuditSettings { queue: 1 << 20, ..AuditSettings::of_gateway() },
            Duration::ZERO,
            200_000,
        ),
        (
            "into a full queue",
            AuditSettings { queue: 1, ..AuditSettings::default() },
            Duration::ZERO,
            200_000,
        ),
        ("20 µs apart", AuditSettings::default(), Duration::from_micros(20), 50_000),
        ("5 ms apart", AuditSettings::default(), Duration::from_millis(5), 400),
    ] {
        let log = AuditLog::with(&folder, settings).0;
        let mut times = Vec::with_capacity(count);
        for id in 0..count as u64 {
            let entry = Entry {
                timestamp: 1_700_000_000_000,
                session: "a session".to_owned(),
                id,
                event: Event::Open,
                domain: "registry.example.com".to_owned(),
                port: 443,
                protocol: Protocol::Https,
                action: Action::Allowed,
                source: Source::Config,
                reason: Some("*.example.com".to_owned()),
                bytes_sent: 0,
                bytes_received: 0,
                duration_millis: 0,
            };
            let since = Instant::now();
            log.record(entry);
            times.push(since.elapsed());
            if pause > Duration::from_millis(1) {
                std::thread::sleep(pause);
            } else {
                while since.elapsed() < pause {
                    std::hint::spin_loop();
                }
            }
        }
        let since = Instant::now();
        let flushed = log.flush(Duration::from_secs(60));
        let flush = since.elapsed();
        let mean = times.iter().sum::<Duration>() / count as u32;
        times.sort_unstable();
        println!(
            "{what}: mean {mean:?}, median {:?}, 99 % {:?}; flushed {flushed} in {flush:?}, {} dropped",
            times[count / 2],
            times[count * 99 / 100],
            log.dropped()
        );
    }
}
