//! Bringing our agent into a machine by SSH: one small program, put where programs may be run, that stays when the login
//! ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use moltis_agent::binary;
use russh::ChannelMsg;
use russh::client::Handle;
use russh::keys::PrivateKey;
use rustix::rand::{GetRandomFlags, getrandom};

use super::Login;
use super::host::Host;
use crate::error::{Error, Result};
use crate::reach::{Reach, Settings};

/// Bytes of what the script says, at most.
const MAX_SAID: usize = 4 << 10;

/// Longest path of the agent's socket: what fits into a socket's address.
const MAX_PATH: usize = 100;

/// Puts what comes on its input where programs may be run, and starts it. It stands between single quotes, whatever the
/// user's shell is, and therefore has none. A program that is asked for nothing ends with 2. What was put where it could not
/// be run is taken away, whatever comes of it: the folder before is needed only for the next copy.
const SCRIPT: &str = r#"umask 077
f=
o=
for d in /tmp /var/tmp /dev/shm "$HOME"; do
  r=$d/.moltis-@TAG@
  mkdir "$r" 2>/dev/null || continue
  if [ -z "$f" ]; then cat >"$r/guest"; else cp "$f" "$r/guest"; fi || { rm -rf "$r" "$o"; exit 72; }
  if [ -n "$o" ]; then rm -rf "$o"; fi
  o=$r
  chmod 500 "$r/guest"
  "$r/guest" >/dev/null 2>&1
  if [ $? = 2 ]; then
    "$r/guest" login --socket "$r/s" --cwd "$HOME" @ARGS@ || { rm -rf "$r"; exit 70; }
    echo "socket $r/s"
    echo "home $HOME"
    exit 0
  fi
  f=$r/guest
done
if [ -n "$o" ]; then rm -rf "$o"; fi
echo "there is no folder in which this program can be put and run" >&2
exit 71"#;

/// Reads the path of an agent's socket and says `over` if no process was started with it. It stands between single quotes,
/// too, and has the path from its input so as not to find itself. What another's processes run can always be read; where
/// that is hidden, the agent may be too, and nothing is said.
const IS_OVER: &str = r#"read -r s || exit 3
case $s in /?*) ;; *) exit 3 ;; esac
l=
read -r l 2>/dev/null </proc/1/cmdline
[ -n "$l" ] || exit 3
for p in /proc/[0-9]*; do
  l=
  read -r l 2>/dev/null <"$p/cmdline"
  case $l in *"$s"*) exit 1 ;; esac
done
echo over"#;

/// Whether the machine says that the agent of this socket is over.
pub(super) async fn is_over(handle: &Handle<Host>, socket: &str) -> bool {
    let said = run(handle, IS_OVER, format!("{socket}\n").as_bytes()).await;
    said.is_ok_and(|said| said.status == Some(0) && said.stdout == b"over\n")
}

/// Logs in for as long as that may take, brings the agent, and starts it.
///
/// # Errors
/// [`Error::Ssh`].
pub async fn move_in(
    address: SocketAddr,
    key: &Arc<PrivateKey>,
    settings: Settings,
    within: Duration,
) -> Result<Reach> {
    let login = Login { address, key: Arc::clone(key), known: None };
    let (handle, host_key) = login.first(within).await?;
    let mut random = [0; 12];
    getrandom(&mut random, GetRandomFlags::empty()).map_err(Error::folder("random numbers"))?;
    let tag: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let script = SCRIPT.replace("@TAG@", &tag).replace("@ARGS@", &settings.words());
    let said = tokio::time::timeout(within, run(&handle, &script, binary::guest_bytes())).await;
    let failed = |why: &str, said: &[u8]| Error::Ssh { why: why.to_owned(), said: plain(said) };
    let said = said.map_err(|_| failed("our agent was not brought into the machine in time", b""))?;
    let said = said
        .map_err(|why| failed("our agent cannot be brought into the machine", why.to_string().as_bytes()))?;
    let what = "our agent does not begin in the machine";
    if said.status != Some(0) {
        return Err(failed(what, &said.stderr));
    }
    let text = String::from_utf8_lossy(&said.stdout);
    let word = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let path = |text: &str| {
        let good =
            text.starts_with('/') && text.len() <= MAX_PATH && text.bytes().all(|b| b.is_ascii_graphic());
        good.then(|| text.to_owned())
    };
    let found = word("socket").and_then(path).zip(word("home").and_then(path));
    let (socket, home) = found.ok_or_else(|| failed(what, &said.stdout))?;
    Ok(Reach { host_key, socket, home })
}

impl Settings {
    /// Arguments of the agent; letters, digits and dashes alone.
    fn words(self) -> String {
        let mut words = Vec::new();
        if self.held {
            words.push("--lifetime held".to_owned());
        }
        if self.egress {
            words.push("--egress".to_owned());
        }
        if let Some(pids) = self.pids {
            words.push(format!("--pids {pids}"));
        }
        words.join(" ")
    }
}

/// What a program did.
struct Said {
    status: Option<u32>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// Runs a script with this input.
async fn run(handle: &Handle<Host>, script: &str, input: &[u8]) -> Result<Said, russh::Error> {
    let channel = handle.channel_open_session().await?;
    channel.exec(true, format!("exec /bin/sh -c '{script}'")).await?;
    let (mut reads, writes) = channel.split();
    let writing = async {
        // Whoever does not read all of it says why.
        let _ = writes.data(input).await;
        let _ = writes.eof().await;
    };
    let reading = async {
        let mut said = Said { status: None, stdout: Vec::new(), stderr: Vec::new() };
        let keep = |all: &mut Vec<u8>, more: &[u8]| {
            let room = MAX_SAID.saturating_sub(all.len()).min(more.len());
            all.extend_from_slice(&more[..room]);
        };
        while let Some(message) = reads.wait().await {
            match message {
                ChannelMsg::Data { data } => keep(&mut said.stdout, &data),
                ChannelMsg::ExtendedData { data, .. } => keep(&mut said.stderr, &data),
                ChannelMsg::ExitStatus { exit_status } => said.status = Some(exit_status),
                ChannelMsg::Failure => said.stderr = b"the server runs no program".to_vec(),
                _ => {}
            }
        }
        said
    };
    tokio::pin!(writing);
    tokio::pin!(reading);
    let mut written = false;
    loop {
        tokio::select! {
            said = &mut reading => return Ok(said),
            () = &mut writing, if !written => written = true,
        }
    }
}

/// In one short line.
fn plain(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_can_stand_between_single_quotes() {
        assert!(!SCRIPT.contains('\'') && !IS_OVER.contains('\''));
        let settings = Settings { held: true, egress: true, pids: Some(7) };
        assert_eq!(settings.words(), "--lifetime held --egress --pids 7");
        assert_eq!(plain(b"a\nb\x1b[1m "), "a b [1m");
    }

    /// Runs the script with these folders, and a program that runs in the one called `good` alone and then begins with
    /// `begins`. Returns how the script ended, and what is left in each folder.
    fn put(folders: &[&str], begins: i32) -> (Option<i32>, Vec<(String, Vec<String>)>) {
        let temp = tempfile::tempdir().unwrap();
        let places = "/tmp /var/tmp /dev/shm \"$HOME\"";
        assert!(SCRIPT.contains(places));
        let paths = folders.iter().map(|name| temp.path().join(name)).collect::<Vec<_>>();
        paths.iter().for_each(|path| std::fs::create_dir(path).unwrap());
        let words = paths.iter().map(|path| path.to_str().unwrap()).collect::<Vec<_>>().join(" ");
        let script = SCRIPT.replace(places, &words).replace("@TAG@", "t").replace("@ARGS@", "");
        let program =
            format!("#!/bin/sh\ncase $0 in */good/*) [ $# = 0 ] && exit 2; exit {begins} ;; esac\nexit 1\n");
        let (input, mut writes) = std::io::pipe().unwrap();
        std::io::Write::write_all(&mut writes, program.as_bytes()).unwrap();
        drop(writes);
        let mut shell = std::process::Command::new("/bin/sh");
        shell.arg("-c").arg(script).env("HOME", "/").stdin(input);
        let ended = shell.output().unwrap().status.code();
        let left = |path: &std::path::PathBuf| {
            let found = std::fs::read_dir(path).unwrap().flatten();
            found.map(|entry| entry.file_name().into_string().unwrap()).collect::<Vec<_>>()
        };
        (ended, folders.iter().map(|name| (*name).to_owned()).zip(paths.iter().map(left)).collect())
    }

    #[test]
    fn only_the_copy_that_runs_is_left() {
        let of =
            |name: &str, left: &[&str]| (name.to_owned(), left.iter().map(|l| (*l).to_owned()).collect());
        let left = vec![of("a", &[]), of("b", &[]), of("good", &[".moltis-t"]), of("c", &[])];
        assert_eq!(put(&["a", "b", "good", "c"], 0), (Some(0), left));
        assert_eq!(put(&["a", "b"], 0), (Some(71), vec![of("a", &[]), of("b", &[])]));
        assert_eq!(put(&["a", "good"], 1), (Some(70), vec![of("a", &[]), of("good", &[])]));
    }
}
