//! A program of somebody else's, run to its end: arguments as a list, a deadline, and no more of its words than are
//! wanted.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

/// Bytes of each stream that are kept, at most. The rest is read and forgotten.
const MAX_WORDS: usize = 16 * 1024;

/// What a program said, and whether it ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Whether its exit code was 0.
    pub good: bool,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Said {
    /// All that it said, in one line.
    pub fn words(&self) -> String {
        let words = format!("{} {}", self.err, self.out);
        words.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// Runs a program with these arguments and this input. It is killed with all that it started when its time is over, and
/// when this is dropped.
///
/// # Errors
/// When it cannot be started, or is not done in time ([`TimedOut`](std::io::ErrorKind::TimedOut)).
pub async fn run<A: AsRef<OsStr>>(
    program: &Path,
    arguments: impl IntoIterator<Item = A>,
    input: &[u8],
    limit: Duration,
) -> std::io::Result<Said> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    command.env("LC_ALL", "C.UTF-8").kill_on_drop(true).process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let mut group = Group(child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)));
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let feed = async {
        if let Some(mut stdin) = stdin {
            // One that does not read to the end says so by its exit code.
            let _ = stdin.write_all(input).await;
        }
    };
    let all = async {
        let ((), out, err) = tokio::join!(feed, words(stdout), words(stderr));
        let good = child.wait().await?.success();
        // Its number is anybody's from here on.
        group.0 = None;
        Ok::<_, std::io::Error>(Said { good, out, err })
    };
    match tokio::time::timeout(limit, all).await {
        Ok(said) => said,
        Err(_) => Err(std::io::Error::new(
            std::io::ErrorKind::TimedOut,
            format!("it was not done within {} s", limit.as_secs()),
        )),
    }
}

/// A process that leads a group and was not buried yet. Dropping it kills all of the group: what a program has started
/// does not outlive it where it is given up.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

async fn words(stream: Option<impl AsyncRead + Unpin>) -> String {
    let Some(mut stream) = stream else { return String::new() };
    let mut kept = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        let room = MAX_WORDS.saturating_sub(kept.len()).min(count);
        kept.extend_from_slice(&buffer[..room]);
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// The first program of this name in the system's folders.
pub fn find(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system =
        ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(Into::into);
    let mut all = std::env::split_paths(&path).filter(|folder| folder.is_absolute()).chain(system);
    all.find_map(|folder| {
        let file = folder.join(name);
        let runs = file.is_file() && rustix::fs::access(&file, rustix::fs::Access::EXEC_OK).is_ok();
        runs.then_some(file)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_program_says_is_bounded_and_so_is_its_time() {
        let sh = Path::new("/bin/sh");
        let limit = Duration::from_secs(30);
        let said = run(sh, ["-c", "cat; echo no >&2; exit 3"], b"yes", limit).await.unwrap();
        assert_eq!(said, Said { good: false, out: "yes".to_owned(), err: "no\n".to_owned() });
        let said = run(sh, ["-c", "head -c 1000000 /dev/zero"], b"", limit).await.unwrap();
        assert!(said.good);
        assert_eq!(said.out.len(), MAX_WORDS);
        let late = run(sh, ["-c", "sleep 1000"], b"", Duration::from_millis(50)).await.unwrap_err();
        assert_eq!(late.kind(), std::io::ErrorKind::TimedOut);
        let temp = tempfile::tempdir().unwrap();
        let line = format!("sleep 1000 & echo $! >{}/child; wait", temp.path().display());
        run(sh, ["-c", &line], b"", Duration::from_secs(1)).await.unwrap_err();
        let child = std::fs::read_to_string(temp.path().join("child")).unwrap();
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", child.trim())).unwrap_or_default();
        let until = std::time::Instant::now() + limit;
        // Nobody may bury it here.
        while !state().is_empty() && !state().contains(" Z ") {
            assert!(std::time::Instant::now() < until, "{}", state());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(run(Path::new("/nowhere"), [""; 0], b"", limit).await.is_err());
        assert!(find("sh").is_some());
        assert_eq!(find("no such program"), None);
    }
}
