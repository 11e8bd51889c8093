//! `moltis shell` on a real terminal, which is tmux's.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use moltis_testkit::need;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::Place;

/// A terminal with a plain shell on it, in a server of its own.
struct Tmux {
    place: Place,
    socket: PathBuf,
}

impl Tmux {
    /// `None` on a machine without tmux, which is noted.
    fn start(test: &str) -> Option<Self> {
        if need::program("tmux").is_none() {
            need::skip(test, "tmux is not installed");
            return None;
        }
        let place = Place::new();
        let socket = place.path("tmux");
        let tmux = Self { place, socket };
        let shell = "exec env -i TERM=\"$TERM\" PATH=\"$PATH\" HOME=\"$HOME\" MOLTIS_DATA_DIR=\"$MOLTIS_DATA_DIR\" \
                     MOLTIS_CONFIG_DIR=\"$MOLTIS_CONFIG_DIR\" PS1='outside> ' sh";
        tmux.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30", shell]);
        tmux.tmux(&["set-option", "-g", "window-size", "manual"]);
        tmux.until("a prompt outside", |screen| screen.contains("outside>"));
        Some(tmux)
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        // The program is not called by its name, so that nothing of the tests' own environment reaches it.
        let mut command = self.place.moltis([] as [&str; 0]);
        let environment: Vec<_> =
            command.get_envs().map(|(n, v)| (n.to_owned(), v.map(ToOwned::to_owned))).collect();
        command = Command::new("tmux");
        command.env_clear().arg("-S").arg(&self.socket).args(arguments).stdin(Stdio::null());
        for (name, value) in environment {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    #[track_caller]
    fn until(&self, what: &str, holds: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            let screen = self.screen();
            if holds(&screen) {
                return screen;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "not within 30 s: {what}\n{screen}");
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Types a line.
    fn line(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]);
        self.tmux(&["send-keys", "Enter"]);
    }

    fn key(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    /// Types a line, and waits until one that begins with `start` shows.
    #[track_caller]
    fn answers(&self, text: &str, start: &str) {
        self.line(text);
        self.until(start, |screen| screen.lines().any(|line| line.starts_with(start)));
    }

    /// Starts a shell in a sandbox and waits until it answers.
    #[track_caller]
    fn shell(&self, further: &str) {
        let program = env!("CARGO_BIN_EXE_moltis");
        self.line(&format!("{program} shell --backend namespaces {further}; echo status=$?"));
        // The prompt is that of bash or of sh, whatever it is called.
        self.until("a prompt inside", |screen| {
            screen.lines().last().is_some() && screen.trim_end().ends_with(['$', '#'])
        });
        self.line("PS1='inside> '");
        self.until("our prompt inside", |screen| screen.trim_end().ends_with("inside>"));
    }

    /// The settings of the terminal, as the shell outside sees them.
    fn settings(&self, round: u32) -> String {
        self.line(&format!("clear; stty -a; echo stty-$((40 + {round}))"));
        let end = format!("stty-{}", 40 + round);
        let screen = self.until("settings", |screen| screen.lines().any(|line| line == end));
        screen
            .lines()
            .filter(|line| !line.contains("outside>") && *line != end)
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// The moltis that runs on the terminal.
    fn moltis(&self) -> Pid {
        let shell = self.tmux(&["display-message", "-p", "#{pane_pid}"]);
        let below = children(shell.trim().parse().unwrap());
        assert_eq!(below.len(), 1, "{below:?}");
        below[0]
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = Command::new("tmux").arg("-S").arg(&self.socket).arg("kill-server").output();
    }
}

/// Processes that any thread of a process has started.
fn children(pid: i32) -> Vec<Pid> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let lists =
        threads.flatten().filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().map(|word| word.parse().unwrap()).collect::<Vec<_>>())
        .map(|pid| Pid::from_raw(pid).unwrap())
        .collect()
}

#[test]
fn a_shell_is_on_a_terminal_that_follows_ours() {
    let Some(tmux) = Tmux::start("a shell on a terminal") else { return };
    tmux.shell("");
    tmux.answers("stty size", "30 100");
    let term = tmux.tmux(&["show-options", "-gv", "default-terminal"]);
    tmux.answers("echo term=$TERM home=$HOME", &format!("term={} home=/home/sandbox", term.trim()));
    tmux.tmux(&["resize-window", "-x", "87", "-y", "22"]);
    tmux.answers("stty size", "22 87");
    tmux.answers("tty", "/dev/pts/");
    tmux.line("exit 7");
    tmux.until("its status", |screen| screen.lines().any(|line| line == "status=7"));
}

#[test]
fn keys_go_inside_and_jobs_are_controlled_there() {
    let Some(tmux) = Tmux::start("job control in a shell") else { return };
    tmux.shell("");
    tmux.line("sleep 1000; echo ended=$?");
    std::thread::sleep(Duration::from_millis(300));
    tmux.key("C-c");
    // Ctrl-C ends the line in bash, and only the command in other shells; the shell goes on in both.
    tmux.answers("echo still here", "still here");
    tmux.line("sleep 1001");
    std::thread::sleep(Duration::from_millis(300));
    tmux.key("C-z");
    tmux.until("stopped", |screen| screen.contains("Stopped"));
    tmux.line("clear; jobs");
    tmux.until("the job", |screen| screen.contains("sleep 1001"));
    tmux.line("fg");
    std::thread::sleep(Duration::from_millis(300));
    tmux.key("C-c");
    tmux.answers("jobs; echo none=$(jobs | wc -l)", "none=0");
    tmux.line("echo 'exit 5' | sh");
    tmux.line("exit");
    tmux.until("its status", |screen| screen.lines().any(|line| line == "status=5"));
}

#[test]
fn colours_show_and_the_clipboard_is_out_of_reach() {
    let Some(tmux) = Tmux::start("colours in a shell") else { return };
    tmux.tmux(&["set-option", "-s", "set-clipboard", "on"]);
    tmux.shell("");
    tmux.line("clear; printf '\\033[31mred\\033[0m \\033]52;c;ZXZpbA==\\007\\033]2;evil\\007plain\\n'");
    tmux.until("both words", |screen| screen.contains("red plain"));
    let coloured = tmux.tmux(&["capture-pane", "-p", "-e"]);
    assert!(coloured.contains("\x1b[31mred"), "{coloured:?}");
    assert_eq!(tmux.tmux(&["list-buffers"]), "", "nothing was put on the clipboard");
    assert_ne!(tmux.tmux(&["display-message", "-p", "#{pane_title}"]).trim(), "evil");
    // The control: what does not come from inside reaches it.
    tmux.line("exit");
    tmux.until("outside again", |screen| screen.trim_end().ends_with("outside>"));
    tmux.line("printf '\\033]2;evil\\007'");
    tmux.until("the title", |_| tmux.tmux(&["display-message", "-p", "#{pane_title}"]).trim() == "evil");
}

#[test]
fn the_terminal_is_put_back_whatever_happens() {
    let Some(tmux) = Tmux::start("the terminal after a shell") else { return };
    let before = tmux.settings(0);
    assert!(before.contains("icanon") && !before.contains("-icanon"), "{before}");
    let left_on = "printf '\\033[?1049h\\033[?25l\\033[?1003h'; echo on the other screen";
    let state = "#{alternate_on} #{cursor_flag} #{mouse_any_flag}";

    tmux.shell("");
    tmux.line(left_on);
    tmux.until("the other screen", |_| tmux.tmux(&["display-message", "-p", state]).trim() == "1 0 1");
    let device = tmux.tmux(&["display-message", "-p", "#{pane_tty}"]);
    let raw = Command::new("stty").args(["-a", "-F", device.trim()]).output().unwrap();
    let raw = String::from_utf8(raw.stdout).unwrap();
    assert!(raw.contains("-icanon"), "the control: it is raw while the shell runs\n{raw}");
    tmux.line("exit 3");
    tmux.until("its status", |screen| screen.lines().any(|line| line == "status=3"));
    assert_eq!(tmux.tmux(&["display-message", "-p", state]).trim(), "0 1 0");
    assert_eq!(tmux.settings(1), before);

    for (round, signal, status) in [(2, Signal::TERM, 143), (3, Signal::HUP, 129)] {
        tmux.shell("");
        tmux.line(left_on);
        tmux.until("the other screen", |_| tmux.tmux(&["display-message", "-p", state]).trim() == "1 0 1");
        kill_process(tmux.moltis(), signal).unwrap();
        let wanted = format!("status={status}");
        tmux.until("its status", |screen| screen.lines().any(|line| line == wanted));
        assert_eq!(tmux.tmux(&["display-message", "-p", state]).trim(), "0 1 0");
        assert_eq!(tmux.settings(round), before);
    }

    tmux.shell("");
    tmux.line(left_on);
    tmux.until("the other screen", |_| tmux.tmux(&["display-message", "-p", state]).trim() == "1 0 1");
    let moltis = tmux.moltis();
    let sandbox = children(moltis.as_raw_nonzero().get());
    assert_eq!(sandbox.len(), 1, "{sandbox:?}");
    kill_process(sandbox[0], Signal::KILL).unwrap();
    // The shell's own end by the same signal may be heard of before the sandbox's.
    let screen = tmux.until("its status", |screen| screen.lines().any(|line| line.starts_with("status=1")));
    let lost = screen.contains("status=125") && screen.contains("error[");
    assert!(lost || screen.contains("status=137"), "{screen}");
    assert_eq!(tmux.tmux(&["display-message", "-p", state]).trim(), "0 1 0");
    assert_eq!(tmux.settings(4), before);
}

#[test]
fn it_can_be_stopped_from_outside_and_goes_on() {
    let Some(tmux) = Tmux::start("a shell that is stopped") else { return };
    tmux.shell("");
    let device = tmux.tmux(&["display-message", "-p", "#{pane_tty}"]);
    let is_raw = || {
        let settings = Command::new("stty").args(["-a", "-F", device.trim()]).output().unwrap();
        String::from_utf8(settings.stdout).unwrap().contains("-icanon")
    };
    assert!(is_raw());
    kill_process(tmux.moltis(), Signal::TSTP).unwrap();
    tmux.until("outside again", |screen| screen.trim_end().ends_with("outside>"));
    assert!(!is_raw());
    tmux.line("fg");
    tmux.until("raw again", |_| is_raw());
    tmux.answers("echo went on", "went on");
    tmux.line("exit 6");
    tmux.until("outside at last", |screen| screen.trim_end().ends_with("outside>"));
    assert!(!is_raw());
}

#[test]
fn a_program_runs_instead_of_a_shell() {
    let Some(tmux) = Tmux::start("a program on a terminal") else { return };
    let program = env!("CARGO_BIN_EXE_moltis");
    tmux.line(&format!(
        "{program} shell --backend namespaces --env A=b -- sh -c 'echo $A; tty; exit 4'; echo status=$?"
    ));
    let screen = tmux.until("its status", |screen| screen.lines().any(|line| line == "status=4"));
    assert!(screen.contains("\nb\n/dev/pts/"), "{screen}");
}

#[test]
fn without_a_terminal_there_is_no_shell() {
    let place = Place::new();
    let ran = place.run(["shell"]);
    assert_eq!(ran.status, Some(125), "{ran:?}");
    assert!(ran.stderr.starts_with("error[not-a-terminal]: a shell needs a terminal"), "{ran:?}");
    assert_eq!(place.run(["shell", "bash"]).status, Some(125));
    assert!(!place.data().exists());
}

#[test]
fn plain_output_on_a_terminal_cannot_reach_further_than_the_screen() {
    let Some(tmux) = Tmux::start("plain output on a terminal") else { return };
    tmux.tmux(&["set-option", "-s", "set-clipboard", "on"]);
    let program = env!("CARGO_BIN_EXE_moltis");
    let title = || tmux.tmux(&["display-message", "-p", "#{pane_title}"]).trim().to_owned();
    // Through both streams, and cut in the middle.
    let evil = "printf \"\\033]52;c;ZXZpbA==\\007\\033]2;evil\\007first\\n\"; printf \"\\033]2;ev\" >&2; sleep 0.3; \
                printf \"il\\007second\\n\" >&2; printf \"\\033[31mred\\033[?25l\\n\"; printf \"\\033]11;cut\" >&2";
    let seen = |what: &str, tail: &str| {
        let screen = tmux.until(what, |screen| screen.lines().any(|line| line == tail));
        assert!(screen.contains("first") && screen.contains("second"), "{screen}");
        assert_ne!(title(), "evil");
        assert_eq!(tmux.tmux(&["list-buffers"]), "", "nothing was put on the clipboard");
        assert_eq!(tmux.tmux(&["display-message", "-p", "#{cursor_flag}"]).trim(), "1", "put back");
        assert!(tmux.tmux(&["capture-pane", "-p", "-e"]).contains("\x1b[31mred"), "colours show");
    };
    tmux.line(&format!("clear; {program} exec --backend namespaces '{evil}'; echo status=$?"));
    seen("its status", "status=0");

    tmux.line(&format!("clear; {program} exec --session s --backend namespaces --background '{evil}'"));
    tmux.until("its number", |screen| screen.lines().any(|line| line == "1"));
    tmux.line(&format!("clear; {program} process output -f s 1; echo watched=$?"));
    // What is kept of each stream comes after the other.
    tmux.until("its end", |screen| screen.lines().any(|line| line == "watched=0"));
    assert_ne!(title(), "evil");
    assert_eq!(tmux.tmux(&["list-buffers"]), "");

    // Each stream for itself: the one that is no terminal is exact.
    let file = tmux.place.path("exact");
    tmux.line(&format!(
        "clear; {program} exec --backend namespaces '{evil}' > {}; echo status=$?",
        file.display()
    ));
    tmux.until("its status", |screen| screen.lines().any(|line| line == "status=0"));
    assert_ne!(title(), "evil");
    assert_eq!(
        std::fs::read(&file).unwrap(),
        b"\x1b]52;c;ZXZpbA==\x07\x1b]2;evil\x07first\n\x1b[31mred\x1b[?25l\n"
    );
}
