//! The messages. Words of a command need not be text: bytes are base64.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use moltis_sandbox::exec::{Command, ExecRequest, Outcome, TerminalSize};
use moltis_sandbox::{
    BackendName, BuildProgress, Diagnosis, Error, GuestPath, MountMode, Network, NotEnforced, Origin,
    SandboxId, SessionKey, Setting,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::store::{Approval, Caller, Gone, LostCommand};
use crate::{NamedWorkspace, Overrides, SessionRequest};

/// What a command of the program asks for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Ask {
    /// Open the sandbox. It comes first, and once.
    Open(Box<AskedPlace>),
    /// Nobody looks on any more while it is opened: an image that is made ready for it is given up.
    GiveUp,
    /// Run this, once.
    Exec(Box<AskedCommand>),
    /// The terminal has this size now.
    Resize(TerminalSize),
    /// Send this signal to the command.
    Signal(i32),
    /// End the command, and all that it started.
    Cancel,
    /// Put away what does not stay, and say when that is done. A command that runs still has lost its caller.
    PutAway,
}

/// What the gateway tells.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Tell {
    /// How the image comes along.
    Progress(Progressed),
    /// The sandbox is open.
    Opened(Box<Where>),
    /// It would run as whoever asks runs: he is to run it himself. Nothing is open.
    Yourself,
    /// It cannot be opened, the command cannot be started, or how it ended is not known.
    Failed(Failed),
    /// The command runs, which may be in another sandbox than was opened.
    Started(u32, Box<Where>),
    /// Output that a watcher came too late for: bytes of standard output, and of standard error.
    Missed(u64, u64),
    /// The command has taken so many bytes of its input.
    Taken(usize),
    /// A program waits for somebody to let a host through.
    Question(Question),
    /// The command is over.
    Exit(Box<Outcome>),
    /// What does not stay is put away; or what of it was not.
    Away(Option<Diagnosis>),
}

/// How a build goes on.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Progressed {
    /// A part begins.
    Step(String),
    /// A line that it printed.
    Log(String),
    /// Bytes so far, and in all if that is known.
    Fetched(u64, Option<u64>),
}

impl From<BuildProgress> for Progressed {
    fn from(progress: BuildProgress) -> Self {
        match progress {
            BuildProgress::Step(step) => Self::Step(step),
            BuildProgress::Log(line) => Self::Log(line),
            BuildProgress::Fetched { bytes, total } => Self::Fetched(bytes, total),
        }
    }
}

impl From<Progressed> for BuildProgress {
    fn from(progressed: Progressed) -> Self {
        match progressed {
            Progressed::Step(step) => Self::Step(step),
            Progressed::Log(line) => Self::Log(line),
            Progressed::Fetched(bytes, total) => Self::Fetched { bytes, total },
        }
    }
}

/// A failure, as it happened on the other side.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Failed {
    /// It will not be done.
    Refused(Diagnosis),
    /// It cannot be done now.
    Unavailable(Diagnosis),
    /// It may have been done.
    Lost(Diagnosis),
    /// It cannot be right.
    Invalid(Diagnosis),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        match error {
            Error::Refused(told) => Self::Refused(told),
            Error::Unavailable(told) => Self::Unavailable(told),
            Error::Lost(told) => Self::Lost(told),
            Error::Invalid(told) => Self::Invalid(told),
        }
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Refused(told) => Self::Refused(told),
            Failed::Unavailable(told) => Self::Unavailable(told),
            Failed::Lost(told) => Self::Lost(told),
            Failed::Invalid(told) => Self::Invalid(told),
        }
    }
}

/// Where a command runs, and what is to be known of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Where {
    /// The session, if it stays.
    pub session: Option<SessionKey>,
    /// What holds the sandbox.
    pub backend: BackendName,
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// Built-in defaults that are not kept.
    pub not_enforced: Vec<NotEnforced>,
    /// What else a person should know.
    pub notes: Vec<String>,
    /// Why the sandbox before this one ended, if this one is new.
    pub restarted: Option<Gone>,
    /// The session's commands whose outcome is not known, told once.
    pub lost: Vec<LostCommand>,
}

/// A program that waits for somebody to let a host through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Question {
    /// Its number.
    pub id: u64,
    /// The host.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Until when it waits, in milliseconds since 1970.
    pub expires_millis: u64,
}

impl From<&Approval> for Question {
    fn from(approval: &Approval) -> Self {
        Self {
            id: approval.id.0,
            host: approval.host.clone(),
            port: approval.port,
            expires_millis: approval.expires_millis,
        }
    }
}

/// Bytes that are mostly text.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bytes(OsString);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        BASE64.encode(self.0.as_bytes()).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = BASE64.decode(text).map_err(serde::de::Error::custom)?;
        Ok(Self(OsString::from_vec(bytes)))
    }
}

impl From<&OsStr> for Bytes {
    fn from(text: &OsStr) -> Self {
        Self(text.to_owned())
    }
}

/// The sandbox that a command of the program asks for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AskedPlace {
    session: Option<AskedSession>,
    backend: Option<String>,
    image: Option<String>,
    network: Option<Network>,
    memory: Option<u64>,
    cpus: Option<f64>,
    pids: Option<u64>,
    workspace: Option<(Bytes, Option<MountMode>)>,
    fuel: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AskedSession {
    key: String,
    must_exist: bool,
    recreate: bool,
}

impl AskedPlace {
    /// What these flags ask for; nothing where they cannot be told to another process.
    pub fn new(overrides: &Overrides, session: Option<&SessionRequest>) -> Option<Self> {
        // Nobody sets it by a flag.
        if overrides.enabled.is_some() {
            return None;
        }
        Some(Self {
            session: session.map(|request| AskedSession {
                key: request.key.as_str().to_owned(),
                must_exist: request.must_exist,
                recreate: request.recreate,
            }),
            backend: overrides.backend.as_ref().map(|choice| choice.value.to_string()),
            image: overrides.image.as_ref().map(|image| image.value.to_string()),
            network: overrides.network.map(|network| network.value),
            memory: overrides.memory.map(|bytes| bytes.value),
            cpus: overrides.cpus.map(|cores| cores.value),
            pids: overrides.pids.map(|count| count.value),
            workspace: overrides
                .workspace
                .as_ref()
                .map(|named| (named.value.source.as_os_str().into(), named.value.mode)),
            fuel: overrides.fuel.map(|fuel| fuel.value),
        })
    }

    /// The same as the gateway takes it, on behalf of this user.
    ///
    /// # Errors
    /// `Invalid` for a word that no command of the program would send.
    pub fn read(self, caller: Caller) -> Result<(Overrides, Option<SessionRequest>), Error> {
        fn set<T>(value: T) -> Setting<T> {
            Setting::new(value, Origin::Flag)
        }
        let wrong = |name: &'static str| {
            move |error: moltis_config::InvalidValue| Error::Invalid(error.diagnosis(name))
        };
        let backend = self.backend.as_deref().map(moltis_config::parse_backend).transpose();
        let image = self.image.as_deref().map(moltis_config::parse_image).transpose();
        let settings = Overrides {
            enabled: None,
            backend: backend.map_err(wrong("--backend"))?.map(set),
            image: image.map_err(wrong("--image"))?.map(set),
            network: self.network.map(set),
            memory: self.memory.map(set),
            cpus: self.cpus.map(set),
            pids: self.pids.map(set),
            workspace: self
                .workspace
                .map(|(source, mode)| set(NamedWorkspace { source: PathBuf::from(source.0), mode })),
            fuel: self.fuel.map(set),
        };
        let Some(AskedSession { key, must_exist, recreate }) = self.session else {
            return Ok((settings, None));
        };
        let key = SessionKey::new(key).ok_or_else(|| {
            Error::Invalid(Diagnosis::new("session-key-invalid", "what came is no key of a session"))
        })?;
        let session = SessionRequest { key, caller, settings: settings.clone(), must_exist, recreate };
        Ok((settings, Some(session)))
    }
}

/// A command that is asked for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AskedCommand {
    line: Option<Bytes>,
    words: Vec<Bytes>,
    cwd: Option<Bytes>,
    env: Vec<(Bytes, Bytes)>,
    stdin: bool,
    timeout: Option<Duration>,
    terminal: Option<TerminalSize>,
    background: bool,
}

impl From<&ExecRequest> for AskedCommand {
    fn from(request: &ExecRequest) -> Self {
        let (line, words) = match &request.command {
            Command::Shell(line) => (Some(Bytes(line.clone())), Vec::new()),
            Command::Argv(words) => (None, words.iter().map(|word| (&**word).into()).collect()),
        };
        Self {
            line,
            words,
            cwd: request.cwd.as_ref().map(|cwd| OsStr::from_bytes(cwd.as_bytes()).into()),
            env: request.env.iter().map(|(name, value)| ((&**name).into(), (&**value).into())).collect(),
            stdin: request.stdin,
            timeout: request.timeout,
            terminal: request.terminal,
            background: request.background,
        }
    }
}

impl AskedCommand {
    /// The same as the gateway takes it.
    ///
    /// # Errors
    /// `Invalid` for what no command of the program would send.
    pub fn read(self) -> Result<ExecRequest, Error> {
        let wrong =
            || Error::Invalid(Diagnosis::new("command-invalid", "the command that was asked for is none"));
        let command = match (self.line, self.words) {
            (Some(line), words) if words.is_empty() => Command::Shell(line.0),
            (None, words) if !words.is_empty() => {
                Command::Argv(words.into_iter().map(|word| word.0).collect())
            }
            _ => return Err(wrong()),
        };
        let cwd = self.cwd.map(|cwd| GuestPath::new(cwd.0.into_vec()).ok_or_else(wrong)).transpose()?;
        Ok(ExecRequest {
            command,
            cwd,
            env: self.env.into_iter().map(|(name, value)| (name.0, value.0)).collect(),
            stdin: self.stdin,
            timeout: self.timeout,
            terminal: self.terminal,
            background: self.background,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_arrives_as_it_was() {
        let mut request =
            ExecRequest::new(Command::Argv(vec!["printf".into(), OsString::from_vec(vec![0xff, b'x'])]));
        request.cwd = GuestPath::new(vec![b'/', 0xfe]);
        request.env = vec![("A".into(), OsString::from_vec(vec![0xfd]))];
        request.timeout = Some(Duration::from_millis(1500));
        request.terminal = Some(TerminalSize { rows: 24, columns: 80 });
        request.stdin = true;
        let sent = serde_json::to_vec(&AskedCommand::from(&request)).unwrap();
        let came: AskedCommand = serde_json::from_slice(&sent).unwrap();
        assert_eq!(came.read().unwrap(), request);

        let set = |value| Some(Setting::new(value, Origin::Flag));
        let settings = Overrides {
            backend: Some(Setting::new(moltis_config::parse_backend("wasm").unwrap(), Origin::Flag)),
            image: Some(Setting::new(moltis_config::parse_image("debian:12").unwrap(), Origin::Flag)),
            network: Some(Setting::new(Network::Trusted, Origin::Flag)),
            memory: set(1 << 30),
            cpus: Some(Setting::new(1.5, Origin::Flag)),
            pids: set(7),
            workspace: Some(Setting::new(
                NamedWorkspace {
                    source: PathBuf::from(OsString::from_vec(vec![b'/', 0xff])),
                    mode: Some(MountMode::Rw),
                },
                Origin::Flag,
            )),
            fuel: set(9),
            enabled: None,
        };
        let caller = Caller::Cli { uid: 7 };
        let session = SessionRequest {
            key: SessionKey::new("a/b").unwrap(),
            caller: caller.clone(),
            settings: settings.clone(),
            must_exist: true,
            recreate: true,
        };
        let sent = serde_json::to_vec(&AskedPlace::new(&settings, Some(&session)).unwrap()).unwrap();
        let came: AskedPlace = serde_json::from_slice(&sent).unwrap();
        assert_eq!(came.read(caller).unwrap(), (settings, Some(session)));
    }

    #[test]
    fn what_no_command_of_the_program_sends_is_refused() {
        let both = r#"{"line":"eA","words":["eQ"],"cwd":null,"env":[],"stdin":false,"timeout":null,"terminal":null,"background":false}"#;
        let none = both.replace(r#""line":"eA""#, r#""line":null"#).replace(r#"["eQ"]"#, "[]");
        let relative = both.replace(r#"["eQ"]"#, "[]").replace(r#""cwd":null"#, r#""cwd":"eA""#);
        for asked in [both, &none, &relative] {
            let asked: AskedCommand = serde_json::from_str(asked).unwrap();
            assert_eq!(asked.read().map_err(|error| error.code().to_owned()), Err("command-invalid".into()));
        }
        assert!(serde_json::from_str::<Ask>(r#"{"signal":9,"more":1}"#).is_err());
    }
}
