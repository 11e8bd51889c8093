//! A process that writes without end and is killed at any moment.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use moltis_runtime::store::{HistoryResult, Store};

use super::child::{Job, key};

/// Something else each time; it is printed with a failure.
struct Lots(u64);

impl Lots {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// What the children have been told is stored.
#[derive(Debug, Default)]
struct Told {
    session: bool,
    begun: u64,
    ended: u64,
    meta: u64,
}

fn kill_one(place: &Path, after: Duration, told: &mut Told) {
    let mut job = Job::start(&[], "write", place);
    let since = Instant::now();
    while since.elapsed() < after {
        std::thread::sleep(Duration::from_micros(200));
    }
    job.kill();
    while let Some(said) = job.said() {
        match said.split_once(' ') {
            Some(("begun", number)) => told.begun = number.parse().unwrap(),
            Some(("ended", number)) => told.ended = number.parse().unwrap(),
            Some(("meta", number)) => told.meta = number.parse().unwrap(),
            _ => told.session = true,
        }
    }
}

fn judge(place: &Path, told: &Told) -> usize {
    let store = Store::new(place);
    let count = store.run_blocking(|d| d.sweep_lost()).unwrap();
    let session = store.run_blocking(|d| d.session(&key("killed"))).unwrap();
    let Some(session) = session else {
        assert!(!told.session, "{told:?}");
        return count;
    };
    let lost = store.run_blocking(|d| d.tell_lost(session.number)).unwrap();
    assert_eq!(lost.len(), count);
    let page = store.run_blocking(|d| d.history(session.number, None, 5)).unwrap();
    let newest = page.entries.first().map_or(0, |entry| entry.number);
    assert!(newest >= told.begun && newest <= told.begun + 1, "{told:?} {newest}");
    for entry in &page.entries {
        assert_ne!(entry.result, HistoryResult::Running, "{told:?}");
        let ended = matches!(entry.result, HistoryResult::Ended { .. });
        assert!(ended || entry.number != told.ended, "{told:?} {entry:?}");
    }
    assert!(lost.len() <= 1, "{lost:?}");
    if let [lost] = &lost[..] {
        assert_eq!((lost.number, lost.session.as_str()), (newest, "killed"));
    }
    let meta = store.run_blocking(|d| d.meta("turn")).unwrap().map_or(0, |text| text.parse().unwrap());
    assert!(meta >= told.meta, "{told:?} {meta}");
    drop(store);
    let raw = rusqlite::Connection::open(place.join("moltis.db")).unwrap();
    let whole: String = raw.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(whole, "ok");
    lost.len()
}

#[test]
fn nothing_acknowledged_is_lost_at_fifty_random_moments() {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 | 1;
    println!("seed {seed}");
    let mut lots = Lots(seed);
    let folder = tempfile::tempdir().unwrap();
    let mut told = Told::default();
    let mut lost = 0;
    for _ in 0..50 {
        kill_one(folder.path(), Duration::from_micros(lots.below(120_000)), &mut told);
        lost += judge(folder.path(), &told);
    }
    assert!(told.ended > 50, "{told:?}");
    println!("{} commands in 50 lives, {lost} lost and told", told.begun);
}

#[test]
fn a_store_that_was_being_made_is_made_again() {
    let mut lots = Lots(0x9e37_79b9_7f4a_7c15);
    for _ in 0..20 {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("data");
        let mut told = Told::default();
        kill_one(&place, Duration::from_micros(1_000 + lots.below(12_000)), &mut told);
        judge(&place, &told);
    }
}
