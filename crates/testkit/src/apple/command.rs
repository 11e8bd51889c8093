//! The executable: which subcommand is meant, and those for containers and the system.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::flags::{Line, read};
use super::say::{Failed, Result, error, no_container, usage};
use super::state::{Kept, State, now};
use super::{Version, fault, images, json, machine};

/// What an executable that stands for the tool does.
pub fn main() -> ! {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let code = run(&given).unwrap_or_else(|Failed { code, words }| {
        if !words.is_empty() {
            eprintln!("{words}");
        }
        code
    });
    let _ = std::io::stdout().flush();
    std::process::exit(code)
}

fn run(given: &[String]) -> Result {
    let state = State::open()?;
    let version = state.version();
    let words: Vec<&str> = given.iter().map(String::as_str).collect();
    match words[..] {
        ["__keep", id] => return machine::keep(&state, id),
        ["__init", id] => return machine::init(&state, id),
        ["--version"] => {
            fault::strike(&state, "--version", "")?;
            println!("container CLI version {}.{}.0 (build: release, commit: abcdef1)", version.0, version.1);
            return Ok(0);
        }
        _ => {}
    }
    let (command, rest) = named(given)?;
    let line = read(&command, version, rest)?;
    let id = match command.as_str() {
        "create" | "run" => line.value("--name").unwrap_or_default(),
        _ => line.arguments.first().map_or("", String::as_str),
    };
    if command != "system start" {
        if state.path("down").exists() {
            return down(&command);
        }
        fault::strike(&state, &command, id)?;
    }
    match command.as_str() {
        "create" => create(&state, &line).map(|kept| {
            println!("{}", kept.id);
            0
        }),
        "run" => start_new(&state, &line),
        "start" => {
            let id = one(&line, "start")?;
            start(&state, id)?;
            println!("{id}");
            Ok(0)
        }
        "stop" | "kill" => stop(&state, &line, command == "kill"),
        "delete" => delete(&state, &line),
        "exec" => exec(&state, &line),
        "list" => list(&state, &line),
        "inspect" => inspect(&state, &line),
        "logs" => logs(&state, &line),
        "system status" => {
            println!("apiserver is running");
            Ok(0)
        }
        "system version" => {
            println!(
                "{}",
                serde_json::json!({"version": format!("{}.{}.0", version.0, version.1), "appName": "container CLI"})
            );
            Ok(0)
        }
        "system start" => {
            let _ = std::fs::remove_file(state.path("down"));
            Ok(0)
        }
        "system stop" => {
            std::fs::write(state.path("down"), "")?;
            Ok(0)
        }
        _ => images::run(&state, &command, &line),
    }
}

/// The subcommand's full name, and its arguments.
fn named(given: &[String]) -> Result<(String, &[String])> {
    let Some((first, rest)) = given.split_first() else {
        return Err(usage("", "Missing expected subcommand"));
    };
    let plain = |name: &str| match name {
        "rm" => "delete".to_owned(),
        "ls" => "list".to_owned(),
        other => other.to_owned(),
    };
    match (first.as_str(), rest.split_first()) {
        ("image" | "i" | "system" | "s", Some((second, rest))) => {
            let group = if first.starts_with('i') { "image" } else { "system" };
            Ok((format!("{group} {}", plain(second)), rest))
        }
        (word, _) if word.starts_with('-') => Err(usage("", format_args!("Unknown option '{word}'"))),
        (word, _) => Ok((plain(word), rest)),
    }
}

fn down(command: &str) -> Result {
    if command == "system status" {
        println!("apiserver is not running and not registered with launchd");
        return Ok(1);
    }
    Err(error(
        "interrupted: \"XPC connection error: Connection invalid\"\nEnsure container system service has been started \
         with `container system start`.",
    ))
}

fn one<'a>(line: &'a Line, command: &str) -> Result<&'a str> {
    match &line.arguments[..] {
        [id] => Ok(id),
        _ => Err(usage(command, "Missing expected argument '<container-id>'")),
    }
}

fn number<T: std::str::FromStr>(command: &str, name: &str, value: &str) -> Result<T> {
    let word = name.trim_start_matches('-');
    value
        .parse()
        .map_err(|_| usage(command, format_args!("The value '{value}' is invalid for '{name} <{word}>'")))
}

fn create(state: &State, line: &Line) -> Result<Kept> {
    let Some((image, arguments)) = line.arguments.split_first() else {
        return Err(usage("create", "Missing expected argument '<image>'"));
    };
    let id = line.value("--name").map_or_else(|| format!("c-{}", std::process::id()), str::to_owned);
    let longest = if state.version() < Version(1, 1) { 64 } else { 63 };
    let good = |c: u8| c.is_ascii_alphanumeric() || b"_.-".contains(&c);
    if id.len() < 2
        || !id.as_bytes()[0].is_ascii_alphanumeric()
        || !id.bytes().all(good)
        || id.len() > longest
    {
        return Err(error(format!("invalidArgument: \"invalid container name {id}\"")));
    }
    let cpus: u64 = number("create", "--cpus", line.value("--cpus").unwrap_or("4"))?;
    if cpus == 0 {
        return Err(error("invalidArgument: \"cpus must be positive\""));
    }
    let memory = memory(line.value("--memory").unwrap_or("1G"))?;
    let user = user(line.value("--user"))?;
    let mut kept = Kept { id: id.clone(), cpus, memory, user, created: now(), ..Kept::default() };
    kept.directory = line.value("--workdir").unwrap_or("/").to_owned();
    kept.remove = line.has("--rm");
    kept.read_only = line.has("--read-only");
    kept.cap_drop = line.all("--cap-drop").to_vec();
    kept.labels = pairs(line.all("--label"))?;
    kept.tmpfs = line.all("--tmpfs").to_vec();
    if let Some(bad) = kept.tmpfs.iter().find(|path| !path.starts_with('/')) {
        return Err(error(format!("invalidArgument: \"{bad} is not absolute\"")));
    }
    for mount in line.all("--mount") {
        kept.binds.push(bind(state.version(), mount)?);
    }
    for volume in line.all("--volume") {
        let mut parts = volume.split(':');
        let (Some(source), Some(target)) = (parts.next(), parts.next()) else {
            return Err(error(format!("invalidArgument: \"invalid volume {volume}\"")));
        };
        let read_only = if parts.next() == Some("ro") { ",readonly" } else { "" };
        let mount = format!("type=bind,source={source},target={target}{read_only}");
        kept.binds.push(bind(state.version(), &mount)?);
    }
    for limit in line.all("--ulimit") {
        let (kind, values) = limit.split_once('=').ok_or_else(|| error("invalidArgument: \"ulimit\""))?;
        let (soft, hard) = values.split_once(':').unwrap_or((values, values));
        let limits = (number("create", "--ulimit", soft)?, number("create", "--ulimit", hard)?);
        match kind {
            "nproc" => kept.processes = Some(limits),
            "nofile" | "core" | "memlock" => {}
            _ => return Err(error(format!("invalidArgument: \"unknown ulimit {kind}\""))),
        }
    }
    kept.networks = line.all("--network").to_vec();
    if kept.networks.is_empty() {
        kept.networks.push("default".to_owned());
    }
    for network in &kept.networks {
        let known = network == "default" || (network == "none" && state.version() >= Version(0, 7));
        if !known {
            return Err(error(format!("notFound: \"network {network} not found\"")));
        }
    }
    let _held = state.lock()?;
    if state.folder(&id).exists() {
        return Err(error(format!("exists: \"container with id {id} already exists\"")));
    }
    let (reference, descriptor) = match state.image(image) {
        Some(found) => found,
        // As the real one: what is not here is fetched.
        None => {
            let place = state.path("registry").join(super::store::normal(image).replace(['/', ':'], "_"));
            state.load(&place).map_err(|_| super::store::no_image(image))?;
            std::fs::write(state.path("fetched"), image)?;
            state.image(image).ok_or_else(|| super::store::no_image(image))?
        }
    };
    let about = state.about(&descriptor)?;
    let strings = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
    };
    kept.env = strings(&about["Env"]);
    if !kept.env.iter().any(|pair| pair.starts_with("PATH=")) {
        kept.env.push("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned());
    }
    kept.env.extend(variables(line)?);
    kept.argv = line
        .value("--entrypoint")
        .map_or_else(|| strings(&about["Entrypoint"]), |word| vec![word.to_owned()]);
    if arguments.is_empty() {
        kept.argv.extend(strings(&about["Cmd"]));
    }
    kept.argv.extend(arguments.iter().cloned());
    kept.image = (reference, descriptor["digest"].as_str().unwrap_or_default().to_owned());
    state.keep(&kept)?;
    state.unpack(&descriptor, &state.folder(&id).join("rootfs"))?;
    Ok(kept)
}

fn variables(line: &Line) -> Result<Vec<String>> {
    let each = line.all("--env").iter().map(|pair| match pair.contains('=') {
        true => Ok(pair.clone()),
        false => Ok(format!("{pair}={}", std::env::var(pair).unwrap_or_default())),
    });
    each.collect()
}

fn pairs(given: &[String]) -> Result<BTreeMap<String, String>> {
    let each = given.iter().map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Ok((name.to_owned(), value.to_owned()))
    });
    each.collect()
}

fn memory(text: &str) -> Result<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let power = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" => 0,
        "K" | "KB" => 1,
        "M" | "MB" => 2,
        "G" | "GB" => 3,
        "T" => 4,
        _ => return Err(error(format!("invalidArgument: \"invalid memory {text}\""))),
    };
    let count: u64 = number("create", "--memory", digits)?;
    Ok((count << (10 * power)) >> 20 << 20)
}

fn user(given: Option<&str>) -> Result<(u32, u32)> {
    let given = given.unwrap_or("0:0");
    let (uid, gid) = given.split_once(':').unwrap_or((given, "0"));
    match (uid.parse(), gid.parse()) {
        (Ok(uid), Ok(gid)) => Ok((uid, gid)),
        _ => Err(error(format!("invalidArgument: \"no user {given}\""))),
    }
}

fn bind(version: Version, mount: &str) -> Result<(PathBuf, String, bool)> {
    let (mut source, mut target, mut read_only) = (None, None, false);
    for part in mount.split(',') {
        match part.split_once('=').unwrap_or((part, "")) {
            ("type", "bind" | "virtiofs") => {}
            ("source" | "src", value) => source = Some(PathBuf::from(value)),
            ("target" | "destination" | "dst", value) => target = Some(value.to_owned()),
            ("readonly" | "ro", "") => read_only = true,
            _ => return Err(error(format!("invalidArgument: \"invalid mount option {part}\""))),
        }
    }
    let (Some(source), Some(target)) = (source, target) else {
        return Err(error(format!("invalidArgument: \"invalid mount {mount}\"")));
    };
    if !source.exists() {
        return Err(error(format!("invalidArgument: \"path '{}' does not exist\"", source.display())));
    }
    if !source.is_dir() && version < Version(0, 9) {
        return Err(error(
            "unknown: \"Error Domain=VZErrorDomain Code=2 \"A directory sharing device configuration is invalid.\" \
             UserInfo={NSUnderlyingError=0x1 {Error Domain=NSPOSIXErrorDomain Code=20 \"Not a directory\"}}\"",
        ));
    }
    Ok((source, target, read_only))
}

fn start(state: &State, id: &str) -> Result<()> {
    let mut kept = state.container(id)?;
    if state.process(id).is_some() {
        return Ok(());
    }
    machine::start(state, &mut kept, fault::never_boots(state))
}

/// `run`: the image's own words are passed on when it is over.
fn start_new(state: &State, line: &Line) -> Result {
    let kept = create(state, line)?;
    let keeps = Kept { remove: false, ..kept.clone() };
    if !line.has("--detach") {
        state.keep(&keeps)?;
    }
    start(state, &kept.id)?;
    if line.has("--detach") {
        println!("{}", kept.id);
        return Ok(0);
    }
    let folder = state.folder(&kept.id);
    while !folder.join("exit").exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let code = std::fs::read_to_string(folder.join("exit"))?.trim().parse().unwrap_or(1);
    std::io::stdout().write_all(&std::fs::read(folder.join("stdio.log"))?)?;
    if kept.remove {
        state.discard(&kept.id)?;
    }
    Ok(code)
}

fn stop(state: &State, line: &Line, kill: bool) -> Result {
    for id in &line.arguments {
        state.container(id)?;
        let word = line.value("--signal").unwrap_or(if kill { "KILL" } else { "SIGTERM" });
        let signal = match word.trim_start_matches("SIG") {
            "KILL" | "9" => Signal::KILL,
            "TERM" | "15" => Signal::TERM,
            "INT" | "2" => Signal::INT,
            _ => return Err(error(format!("invalidArgument: \"invalid signal {word}\""))),
        };
        machine::signal(state, id, signal);
        if !kill {
            let patience = number("stop", "--time", line.value("--time").unwrap_or("5"))?;
            if !machine::over(state, id, Duration::from_secs(patience)) {
                machine::signal(state, id, Signal::KILL);
            }
        }
        machine::over(state, id, Duration::from_secs(10));
        println!("{id}");
    }
    Ok(0)
}

fn delete(state: &State, line: &Line) -> Result {
    for id in &line.arguments {
        state.container(id)?;
        if state.process(id).is_some() {
            if !line.has("--force") {
                return Err(error(format!("invalidState: \"container {id} is running\"")));
            }
            machine::signal(state, id, Signal::KILL);
            machine::over(state, id, Duration::from_secs(10));
        }
        let _held = state.lock()?;
        state.discard(id)?;
        println!("{id}");
    }
    Ok(0)
}

fn exec(state: &State, line: &Line) -> Result {
    let Some((id, argv)) = line.arguments.split_first().filter(|(_, argv)| !argv.is_empty()) else {
        return Err(usage("exec", "Missing expected argument '<arguments> ...'"));
    };
    let kept = state.container(id)?;
    let user = line.value("--user").map_or(Ok(kept.user), |given| user(Some(given)))?;
    let mut env = kept.env.clone();
    env.extend(variables(line)?);
    machine::exec(state, &kept, argv, user, line.value("--workdir").unwrap_or(&kept.directory), &env)
}

fn list(state: &State, line: &Line) -> Result {
    let all = state.containers();
    let shown = all.iter().filter(|kept| line.has("--all") || state.process(&kept.id).is_some());
    if line.value("--format") == Some("json") {
        println!("{}", Value::Array(shown.map(|kept| json::container(state, kept)).collect()));
        return Ok(0);
    }
    shown.for_each(|kept| println!("{}", kept.id));
    Ok(0)
}

fn inspect(state: &State, line: &Line) -> Result {
    if line.arguments.is_empty() {
        return Err(usage("inspect", "Missing expected argument '<container-ids> ...'"));
    }
    let mut found = Vec::new();
    for id in &line.arguments {
        match state.container(id) {
            Ok(kept) => found.push(json::container(state, &kept)),
            Err(_) if state.version() < Version(1, 0) => {}
            Err(_) => return Err(error(format!("container not found: {id}"))),
        }
    }
    match (&found[..], json::is_single(state.version())) {
        ([one], true) => println!("{one:#}"),
        _ => println!("{:#}", Value::Array(found)),
    }
    Ok(0)
}

fn logs(state: &State, line: &Line) -> Result {
    let id = one(line, "logs")?;
    state.container(id).map_err(|_| no_container(id))?;
    let file = if line.has("--boot") { "boot.log" } else { "stdio.log" };
    let text = std::fs::read(state.folder(id).join(file)).unwrap_or_default();
    std::io::stdout().write_all(&text)?;
    Ok(0)
}
