//! What requests say of a command and of its sandbox.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use moltis_config::value::image::ImageReference;
use moltis_config::{BackendChoice, InvalidValue};
use moltis_runtime::store::EnvValue;
use moltis_runtime::{NamedWorkspace, Overrides, Runtime, SessionRequest};
use moltis_sandbox::{Command, ExecRequest, MountMode, Network, Origin, SessionKey, Setting};
use serde::Deserialize;

use crate::call::guest_path;
use crate::grants::{self, Asked};
use crate::identity::Identity;
use crate::problem::Problem;

/// Longest time that a command may be given, in seconds.
pub const MAX_TIMEOUT: f64 = 1800.0;

/// Bytes of a body with a command, and of its standard input as JSON.
pub const MAX_BODY: usize = 8 << 20;

/// How bytes are written in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// As they are.
    #[default]
    Utf8,
    /// In base64.
    Base64,
}

/// A command, and where it is to run.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Ask {
    /// A line for the shell.
    pub command: Option<String>,
    /// A program and its arguments.
    pub argv: Option<Vec<String>>,
    /// Directory inside to run it in.
    pub cwd: Option<String>,
    /// Variables.
    pub env: BTreeMap<String, EnvValue>,
    /// Standard input.
    pub stdin: Option<String>,
    /// How that is written.
    pub stdin_encoding: Encoding,
    /// Time until it is ended, in seconds.
    pub timeout_secs: Option<f64>,
    /// Bytes of each stream that the answer keeps.
    pub max_output_bytes: Option<u64>,
    /// What a new session stores, and what an existing one must agree with.
    pub settings: AskedSettings,
    /// Refuse a session that is not there.
    pub must_exist: bool,
    /// End the session's sandbox first.
    pub recreate: bool,
}

/// What the sandbox is to be.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AskedSettings {
    backend: Option<String>,
    network: Option<Network>,
    image: Option<String>,
    limits: AskedLimits,
    workspace: Option<AskedWorkspace>,
    wasm_fuel_limit: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct AskedLimits {
    memory: Option<u64>,
    cpus: Option<f64>,
    pids: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AskedWorkspace {
    source: PathBuf,
    #[serde(default)]
    mode: Option<MountMode>,
}

fn set<T>(value: T) -> Setting<T> {
    Setting::new(value, Origin::Api)
}

/// A word of a request, read as the configuration reads it.
///
/// # Errors
/// Those of reading it.
pub fn word<T>(
    name: &str,
    text: Option<&str>,
    parse: impl FnOnce(&str) -> Result<T, InvalidValue>,
) -> Result<Option<T>, Problem> {
    text.map(parse).transpose().map_err(|error| invalid_value(name, &error))
}

/// A value that cannot be right.
pub fn invalid_value(name: &str, error: &InvalidValue) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "invalid", error.diagnosis(name))
}

fn out_of_range(name: &str, fix: &str) -> Problem {
    Problem::invalid("value-out-of-range", format!("`{name}` is out of range")).fix(fix)
}

impl AskedSettings {
    /// What is asked for, if the caller may ask for it.
    ///
    /// # Errors
    /// Those of the values and of [`grants::see`].
    pub async fn overrides(&self, runtime: &Runtime, who: &Identity) -> Result<Overrides, Problem> {
        let backend: Option<BackendChoice> =
            word("settings.backend", self.backend.as_deref(), moltis_config::parse_backend)?;
        let image: Option<ImageReference> =
            word("settings.image", self.image.as_deref(), moltis_config::parse_image)?;
        let AskedLimits { memory, cpus, pids } = self.limits;
        if memory.is_some_and(|bytes| !(1 << 20..=i64::MAX as u64).contains(&bytes)) {
            return Err(out_of_range("settings.limits.memory", "use at least 1048576 bytes (1 MiB)"));
        }
        if cpus.is_some_and(|cores| !(cores.is_finite() && cores > 0.0)) {
            return Err(out_of_range("settings.limits.cpus", "use a number of cores above 0"));
        }
        if pids.is_some_and(|count| !(1..=4_194_304).contains(&count)) {
            return Err(out_of_range("settings.limits.pids", "use 1 to 4194304"));
        }
        if self.wasm_fuel_limit.is_some_and(|fuel| !(1..=i64::MAX as u64).contains(&fuel)) {
            return Err(out_of_range("settings.wasmFuelLimit", "use at least 1 instruction"));
        }
        if let Some(workspace) = &self.workspace
            && (!workspace.source.is_absolute() || workspace.source.as_os_str().len() > 4096)
        {
            return Err(out_of_range("settings.workspace.source", "name a folder of the host from the root"));
        }
        let asked = Asked {
            enabled: None,
            backend,
            network: self.network,
            image: image.as_ref(),
            workspace: self.workspace.as_ref().map(|workspace| &*workspace.source),
        };
        grants::see(runtime, who, asked).await?;
        let workspace = self.workspace.as_ref();
        Ok(Overrides {
            enabled: None,
            backend: backend.map(set),
            image: image.map(set),
            network: self.network.map(set),
            memory: memory.map(set),
            cpus: cpus.map(set),
            pids: pids.map(set),
            workspace: workspace.map(|w| set(NamedWorkspace { source: w.source.clone(), mode: w.mode })),
            fuel: self.wasm_fuel_limit.map(set),
        })
    }
}

impl Ask {
    /// What to run. A background command has no time-out unless one is given.
    ///
    /// # Errors
    /// `command-missing` and those of the values.
    pub fn request(&self, runtime: &Runtime, background: bool) -> Result<ExecRequest, Problem> {
        let mut request = ExecRequest::new(self.what()?);
        request.env = variables(&self.env)?;
        request.cwd = self.cwd.as_ref().map(|cwd| guest_path(cwd.as_bytes())).transpose()?;
        request.timeout = match self.timeout_secs {
            Some(seconds) if seconds > 0.0 && seconds <= MAX_TIMEOUT => {
                Some(Duration::from_secs_f64(seconds))
            }
            Some(_) => return Err(out_of_range("timeoutSecs", "use more than 0 and at most 1800 seconds")),
            None => (!background).then(|| runtime.default_timeout()),
        };
        request.background = background;
        // Input of a background command may come later.
        request.stdin = background || self.stdin.is_some();
        Ok(request)
    }

    fn what(&self) -> Result<Command, Problem> {
        let command = match (&self.command, &self.argv) {
            (Some(line), None) => Command::Shell(line.into()),
            (None, Some(words)) if !words.is_empty() => {
                Command::Argv(words.iter().map(OsString::from).collect())
            }
            _ => {
                return Err(Problem::invalid("command-missing", "there is no command, or more than one")
                    .fix(
                        "give either `command`, a line for the shell, or `argv`, a program and its arguments",
                    ));
            }
        };
        if self.command.iter().chain(self.argv.iter().flatten()).any(|word| word.contains('\0')) {
            return Err(
                Problem::invalid("command-nul", "a command cannot hold a NUL byte").fix("take it out")
            );
        }
        Ok(command)
    }

    /// Standard input.
    ///
    /// # Errors
    /// `stdin-invalid`.
    pub fn input(&self) -> Result<Option<bytes::Bytes>, Problem> {
        let Some(text) = &self.stdin else { return Ok(None) };
        match self.stdin_encoding {
            Encoding::Utf8 => Ok(Some(text.clone().into_bytes().into())),
            Encoding::Base64 => BASE64
                .decode(text)
                .map(|bytes| Some(bytes.into()))
                .map_err(|error| Problem::invalid("stdin-invalid", "`stdin` is no base64").cause(error)),
        }
    }

    /// Bytes of each stream that the answer keeps.
    ///
    /// # Errors
    /// `value-out-of-range`.
    pub fn cap(&self, runtime: &Runtime) -> Result<usize, Problem> {
        let most = runtime.max_output_bytes().max(16 << 20);
        let cap = self.max_output_bytes.unwrap_or_else(|| runtime.max_output_bytes());
        if cap > most {
            return Err(out_of_range(
                "maxOutputBytes",
                &format!("use at most {most}, or read the answer as a stream"),
            ));
        }
        Ok(usize::try_from(cap).unwrap_or(usize::MAX))
    }

    /// The session that it is for, as the caller asks for it.
    pub fn session(&self, key: SessionKey, who: &Identity, settings: Overrides) -> SessionRequest {
        SessionRequest {
            key,
            caller: who.caller(),
            settings,
            must_exist: self.must_exist,
            recreate: self.recreate,
        }
    }
}

fn variables(env: &BTreeMap<String, EnvValue>) -> Result<Vec<(OsString, OsString)>, Problem> {
    let is_name = |name: &str| {
        let letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
        name.len() <= 256
            && name.bytes().next().is_some_and(letter)
            && name.bytes().all(|byte| letter(byte) || byte.is_ascii_digit())
    };
    let mut all = Vec::with_capacity(env.len());
    for (name, value) in env {
        if !is_name(name) {
            return Err(Problem::invalid("env-name-invalid", format!("{name:?} is no name of a variable"))
                .fix("a name has letters, digits and _, and no digit first"));
        }
        if value.expose().contains('\0') {
            return Err(Problem::invalid(
                "env-value-invalid",
                format!("the value of {name} holds a NUL byte"),
            ));
        }
        all.push((name.into(), value.expose().into()));
    }
    Ok(all)
}
