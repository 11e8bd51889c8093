//! `sandbox_info`: what a model has to know of where it is.

use moltis_egress::{OnUnknown, Policy, Rule};
use moltis_runtime::json::Process;
use moltis_sandbox::{BackendName, MountMode, Network, Result, SandboxSpec};
use rmcp::model::Tool;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{LOOKS, shown};
use crate::answer::Answered;
use crate::place::Open;
use crate::schema::{array, boolean, input, integer, may, needs, number, object, output, string, word};
use crate::server::Call;
use crate::tools::exec::{KEPT, MAX_SECS};

#[derive(Deserialize)]
pub(crate) struct Arguments {}

pub(crate) fn tool() -> Tool {
    let setting = || object("A setting", vec![needs("key", string("")), needs("reason", string(""))]);
    let domains = |what: &str| array(what, string("A domain, `*.` for those below it"));
    let network = object(
        "What can be reached",
        vec![
            needs(
                "policy",
                word(
                    "blocked: nothing; trusted: the trusted domains; open: everything",
                    &["blocked", "trusted", "open"],
                ),
            ),
            may("trustedDomains", domains("What can be reached, by the proxy that the proxy variables name")),
            may("deniedDomains", domains("What is never let through")),
            may(
                "onUnknown",
                word("What becomes of another domain: it is refused, or a person is asked", &["deny", "ask"]),
            ),
        ],
    );
    let mount = object(
        "A folder",
        vec![
            needs("path", string("Where it is")),
            needs("mode", word("Whether it can be written", &["ro", "rw"])),
            needs("what", string("What it is")),
        ],
    );
    let limits = object(
        "What may be used up",
        vec![
            may("memoryBytes", integer("Memory of the whole sandbox", 0, None)),
            may("cpus", number("Processor cores")),
            may("pids", integer("Processes and threads", 0, None)),
            needs("timeoutSecs", integer("Time of a command that names none", 1, None)),
            needs("maxTimeoutSecs", integer("Longest time that a command may name", 1, None)),
            needs("outputBytes", integer("Bytes of each stream that an answer gives by itself", 0, None)),
            needs("maxOutputBytes", integer("Bytes of each stream that an answer gives at most", 0, None)),
        ],
    );
    let process = object(
        "A background command",
        vec![
            needs("process", integer("Its number", 0, None)),
            needs("command", string("What it is")),
            needs("running", boolean("Whether it runs")),
            may("exitCode", integer("How it ended", 0, None)),
        ],
    );
    super::tool(
        "sandbox_info",
        "Describe the sandbox",
        "Tells what the sandbox is: what holds it and whether it is isolated from the user's machine, what of the network \
         can be reached, which folders are there and whether they can be written, limits, the directory in which commands \
         run, what is not enforced, and which background commands there are.",
        input(Vec::new()),
        output(vec![
            needs("backend", string("What holds the sandbox")),
            needs("isolated", boolean("Whether commands are kept away from the user's machine")),
            needs("sandboxId", string("Which sandbox")),
            may("session", string("Which session; absent for a sandbox that ends with this connection")),
            needs("cwd", string("Directory in which commands run")),
            needs("network", network),
            needs("mounts", array("Folders that are the user's, or that last", mount)),
            needs("limits", limits),
            may(
                "filePaths",
                object(
                    "Which paths file tools may touch",
                    vec![
                        needs("allowPaths", array("Only these, if there are any", string(""))),
                        needs("denyPaths", array("Never these", string(""))),
                    ],
                ),
            ),
            needs("notEnforced", array("Settings that this backend does not keep", setting())),
            needs("notes", array("What else is to be known", string(""))),
            needs("processes", array("Background commands", process)),
        ]),
        &LOOKS,
    )
}

pub(crate) async fn run(call: &Call, _: Arguments) -> Result<Answered> {
    let runtime = call.runtime();
    let open = call.open().await?;
    let spec = open.spec();
    let isolated = !matches!(open.backend(), BackendName::RestrictedHost | BackendName::None);
    let policy = match spec.network.value {
        Network::Trusted => Some(runtime.policy(&spec.key).await?),
        Network::Blocked | Network::Open => None,
    };
    let cwd = shown::path(open.directory().as_bytes());
    let network = network(spec.network.value, policy.as_ref());
    let mounts = mounts(spec, isolated, &cwd);
    let config = runtime.config();
    let most = runtime.max_output_bytes();
    let limits = limits(spec, runtime.default_timeout().as_secs(), most);
    let processes: Vec<_> = open.sandbox().processes().await?.iter().map(Process::from).collect();
    let mut data = json!({
        "backend": open.backend(),
        "isolated": isolated,
        "sandboxId": open.sandbox().id(),
        "cwd": cwd,
        "network": network,
        "mounts": mounts,
        "limits": limits,
        "notEnforced": open.not_enforced(),
        "notes": open.notes(),
        "processes": processes,
    });
    if let Some(session) = open.session() {
        data["session"] = json!(session);
    }
    let (allow, deny) = (&config.tools.fs.allow_paths.value, &config.tools.fs.deny_paths.value);
    if !allow.is_empty() || !deny.is_empty() {
        let texts = |globs: &[moltis_config::value::glob::Glob]| -> Vec<String> {
            globs.iter().map(|glob| glob.as_str().to_owned()).collect()
        };
        data["filePaths"] = json!({ "allowPaths": texts(allow), "denyPaths": texts(deny) });
    }
    Ok(Answered::new(text(&open, &data), data))
}

fn network(network: Network, policy: Option<&Policy>) -> Value {
    let mut told = json!({ "policy": network });
    if let Some(policy) = policy {
        let domains =
            |rules: &[Rule]| -> Vec<String> { rules.iter().map(|rule| rule.pattern.to_string()).collect() };
        told["trustedDomains"] = domains(&policy.trusted).into();
        told["deniedDomains"] = domains(&policy.denied).into();
        told["onUnknown"] = match policy.on_unknown {
            OnUnknown::Deny => "deny",
            OnUnknown::Ask(_) => "ask",
        }
        .into();
    }
    told
}

/// Folders as they show inside. Where they are on the user's machine is none of a model's business, but where commands
/// run there anyway.
fn mounts(spec: &SandboxSpec, isolated: bool, cwd: &str) -> Vec<Value> {
    let mount = |path: &str, mode: MountMode, what: &str| json!({ "path": path, "mode": mode, "what": what });
    let shown = |path: &std::path::Path| path.display().to_string();
    if !isolated {
        return vec![mount(cwd, MountMode::Rw, "the directory in which commands run, on the user's machine")];
    }
    let home = match &spec.home {
        Some(_) => "the home, which lasts when the sandbox ends",
        None => "the home, which ends with the sandbox",
    };
    let mut all = vec![mount("/home/sandbox", MountMode::Rw, home)];
    if let Some(workspace) = &spec.workspace {
        let mount_of = &workspace.value;
        all.push(mount(&shown(&mount_of.target), mount_of.mode, "the workspace, a folder of the user's"));
    }
    if let Some(files) = &spec.managed_files {
        all.push(mount(&shown(&files.target), files.mode, "managed files, which all sandboxes share"));
    }
    all.extend(
        spec.mounts
            .iter()
            .map(|one| mount(&shown(&one.value.target), one.value.mode, "a folder of the user's")),
    );
    all
}

fn limits(spec: &SandboxSpec, timeout: u64, most: u64) -> Map<String, Value> {
    let mut limits = Map::new();
    let mut add = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            limits.insert(name.to_owned(), value);
        }
    };
    add("memoryBytes", spec.limits.memory.map(|limit| limit.value.into()));
    add("cpus", spec.limits.cpus.map(|limit| limit.value.into()));
    add("pids", spec.limits.pids.map(|limit| limit.value.into()));
    add("timeoutSecs", Some(timeout.into()));
    add("maxTimeoutSecs", Some(MAX_SECS.into()));
    add("outputBytes", Some(KEPT.min(most).into()));
    add("maxOutputBytes", Some(most.into()));
    limits
}

fn text(open: &Open, data: &Value) -> String {
    let of = |name: &str| data[name].as_array().cloned().unwrap_or_default();
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut lines = vec![match data["isolated"].as_bool() {
        Some(true) => format!("A sandbox on {}, isolated from the user's machine.", open.backend()),
        _ => {
            format!("NO isolation ({}): commands run on the user's own machine. Be careful.", open.backend())
        }
    }];
    lines.push(format!("Commands run in {}.", word(&data["cwd"])));
    let network = &data["network"];
    lines.push(match word(&network["policy"]).as_str() {
        "blocked" => "Network: nothing can be reached.".to_owned(),
        "trusted" => {
            let domains = |name: &str| -> Vec<String> {
                network[name].as_array().into_iter().flatten().map(word).collect()
            };
            let (trusted, denied) = (domains("trustedDomains"), domains("deniedDomains"));
            let mut line = match trusted.is_empty() {
                true => "Network: by the proxy, no domain is trusted".to_owned(),
                false => format!("Network: by the proxy, {}", trusted.join(", ")),
            };
            if !denied.is_empty() {
                line.push_str(&format!("; never {}", denied.join(", ")));
            }
            if network["onUnknown"] == "ask" {
                line.push_str("; for another one a person is asked, which takes a while");
            }
            line + "."
        }
        _ => "Network: everything can be reached.".to_owned(),
    });
    for mount in of("mounts") {
        let mode = if mount["mode"] == "rw" { "can be written" } else { "read-only" };
        lines.push(format!("{}: {}, {mode}.", word(&mount["path"]), word(&mount["what"])));
    }
    let limits: Vec<_> = data["limits"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key} {value}"))
        .collect();
    lines.push(format!("Limits: {}.", limits.join(", ")));
    if let Some(rules) = data.get("filePaths") {
        lines.push(format!("File tools may touch: {rules}."));
    }
    for left in of("notEnforced") {
        lines.push(format!("Not enforced: {} ({}).", word(&left["key"]), word(&left["reason"])));
    }
    lines.extend(of("notes").iter().map(|note| format!("Note: {}.", word(note))));
    for process in of("processes") {
        let state = if process["running"] == true { "runs" } else { "is over" };
        lines.push(format!("Process {} {state}: {}", process["process"], word(&process["command"])));
    }
    lines.extend(open.news());
    lines.join("\n")
}
