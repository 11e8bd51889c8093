//! Whether a sandbox can be launched *now*: found out by launching the smallest one, remembered for a minute.

use std::fs::{self, OpenOptions};
use std::future::Future;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use moltis_sandbox::{Detection, Diagnosis};
use serde::{Deserialize, Serialize};

/// How long a success is believed, in seconds.
const BELIEVED: u64 = 60;
/// Longest file that is read.
const MAX_BYTES: u64 = 4096;

/// Detection of one data directory, with its memory on disk: `cache/detect-namespaces.json`. Only successes are
/// remembered, and only for the same user, boot, kernel and guest binary. The memory is a convenience: whatever is
/// wrong with the file counts as not remembered.
#[derive(Clone, Debug)]
pub struct Detector {
    file: PathBuf,
    guest: String,
}

/// What was found out, when, and for whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Memory {
    uid: u32,
    boot: String,
    kernel: String,
    guest: String,
    /// Seconds since boot.
    at: u64,
}

impl Detector {
    /// For this data directory and guest binary (`guest_hash`: its content hash in hexadecimal).
    pub fn new(data_dir: &Path, guest_hash: &str) -> Self {
        Self { file: data_dir.join("cache/detect-namespaces.json"), guest: guest_hash.to_owned() }
    }

    /// Answers from memory if a launch worked within the last minute, else runs `trial`, which launches the smallest
    /// sandbox and ends it again, and remembers a success.
    ///
    /// # Errors
    /// The trial's own; failures are never remembered.
    pub async fn detect<F, Fut, E>(&self, trial: F) -> Result<(), E>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<(), E>>,
    {
        if self.off_thread(Self::recalls).await.unwrap_or(false) {
            return Ok(());
        }
        trial().await?;
        self.off_thread(Self::remember).await;
        Ok(())
    }

    async fn off_thread<T: Send + 'static>(&self, work: fn(&Self) -> T) -> Option<T> {
        let this = self.clone();
        moltis_sandbox::blocking::short(move || work(&this)).await.ok()
    }

    /// Whether a launch is known to have worked within the last minute. Blocks on a small file.
    pub fn recalls(&self) -> bool {
        let now = self.now();
        self.read().is_some_and(|then| {
            let Memory { at, .. } = then;
            now.at >= at && now.at - at < BELIEVED && Memory { at, ..now } == then
        })
    }

    /// Records that a launch just worked (a real `open` is as good as a trial). Blocks on a small file.
    pub fn remember(&self) {
        // Without it the next process tries again, which is all that can be lost.
        let _ = self.write();
    }

    /// Forgets a remembered success: an `open` has failed. Blocks on a small file.
    pub fn forget(&self) {
        let _ = fs::remove_file(&self.file);
    }

    fn now(&self) -> Memory {
        let text = |path| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let clock = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Memory {
            uid: rustix::process::geteuid().as_raw(),
            boot: text("/proc/sys/kernel/random/boot_id"),
            kernel: text("/proc/sys/kernel/osrelease"),
            guest: self.guest.clone(),
            at: u64::try_from(clock.tv_sec).unwrap_or(0),
        }
    }

    fn read(&self) -> Option<Memory> {
        // Neither a link nor a pipe in the file's place can make us wait or read something else.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&self.file).ok()?;
        let mut text = String::new();
        file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
        serde_json::from_str(&text).ok()
    }

    fn write(&self) -> io::Result<()> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let folder = self.file.parent().ok_or(io::ErrorKind::NotFound)?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let draft = folder.join(format!(".detect-namespaces-{}-{serial}", std::process::id()));
        let text = serde_json::to_string(&self.now())?;
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&draft)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .and_then(|()| fs::rename(&draft, &self.file));
        if written.is_err() {
            let _ = fs::remove_file(&draft);
        }
        written
    }
}

/// Reasons that lie in how the machine is set up. Any other passes, or is mended where it lies: then the backend fails
/// at the moment, and nobody should make do with less.
const SETUP: [&str; 13] = [
    "not-linux",
    "seccomp-missing",
    "userns-not-built",
    "userns-in-chroot",
    "userns-unprivileged-off",
    "userns-forbidden",
    "userns-apparmor",
    "userns-max-zero",
    "namespaces-max-zero",
    "kernel-too-old",
    "proc-masked",
    "seccomp-blocks-clone",
    "apparmor-profile",
];

/// A failed trial, told by whether it lies in the machine's set-up.
pub fn judged(why: Diagnosis) -> Detection {
    if SETUP.contains(&&*why.code) { Detection::Unusable(why) } else { Detection::Failing(why) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detector() -> (tempfile::TempDir, Detector) {
        let data = tempfile::tempdir().unwrap();
        let detector = Detector::new(data.path(), "abc");
        (data, detector)
    }

    /// Whether detection tried, and what it answered.
    fn detect(detector: &Detector, works: bool) -> (bool, Result<(), &'static str>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut tried = false;
        let trial = || {
            tried = true;
            async move { if works { Ok(()) } else { Err("no") } }
        };
        let answer = runtime.block_on(detector.detect(trial));
        (tried, answer)
    }

    #[test]
    fn a_success_is_remembered_and_a_failure_is_not() {
        let (_data, detector) = detector();
        assert_eq!(detect(&detector, false), (true, Err("no")));
        assert_eq!(detect(&detector, true), (true, Ok(())));
        assert_eq!(detect(&detector, false), (false, Ok(())));
        detector.forget();
        assert_eq!(detect(&detector, false), (true, Err("no")));
        detector.forget();
    }

    #[test]
    fn memory_is_of_one_minute_user_boot_kernel_and_guest() {
        let (data, detector) = detector();
        detector.remember();
        let good = detector.read().unwrap();
        let put =
            |memory: &Memory| fs::write(&detector.file, serde_json::to_string(memory).unwrap()).unwrap();
        let cases: [(&str, Memory, bool); 8] = [
            ("fresh", good.clone(), true),
            ("59 seconds", Memory { at: good.at.saturating_sub(58), ..good.clone() }, good.at >= 58),
            ("61 seconds", Memory { at: good.at.wrapping_sub(61), ..good.clone() }, false),
            ("of the future", Memory { at: good.at + 1000, ..good.clone() }, false),
            ("another uid", Memory { uid: good.uid + 1, ..good.clone() }, false),
            ("another boot", Memory { boot: "x".to_owned(), ..good.clone() }, false),
            ("another kernel", Memory { kernel: "x".to_owned(), ..good.clone() }, false),
            ("another guest", Memory { guest: "x".to_owned(), ..good.clone() }, false),
        ];
        for (name, memory, expected) in cases {
            put(&memory);
            assert_eq!(detector.recalls(), expected, "{name}");
        }
        assert!(!Detector::new(data.path(), "other").recalls());
        assert_eq!(fs::read_dir(data.path().join("cache")).unwrap().count(), 1, "a draft was left behind");
    }

    #[test]
    fn rubbish_is_not_remembered() {
        let (data, detector) = detector();
        assert!(!detector.recalls());
        fs::create_dir(data.path().join("cache")).unwrap();
        for rubbish in ["", "{", "null", &"x".repeat(1 << 16)] {
            fs::write(&detector.file, rubbish).unwrap();
            assert!(!detector.recalls());
        }
        fs::remove_file(&detector.file).unwrap();
        std::os::unix::fs::symlink("/proc/self/mem", &detector.file).unwrap();
        assert!(!detector.recalls());
        detector.remember();
        assert!(detector.recalls(), "a link is replaced, not followed");
    }

    #[test]
    fn a_data_directory_that_cannot_be_written_only_costs_the_memory() {
        let detector = Detector::new(Path::new("/proc/nowhere"), "abc");
        assert_eq!(detect(&detector, true), (true, Ok(())));
        assert_eq!(detect(&detector, true), (true, Ok(())));
    }
}
