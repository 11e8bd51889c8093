//! Packages, installed in a sandbox before it is handed out. Its network is opened for that long, before anything of the
//! session runs, and only where something is missing.

use std::sync::Arc;
use std::time::Duration;

use moltis_agentless::plain;
use moltis_config::packages::{Manager, spelled_out};
use moltis_sandbox::{Diagnosis, Error, Result, Setting};

use super::backend::other_terms;
use super::client::Daytona;
use super::machine::DaytonaMachine;
use crate::failure;
use crate::program::script_within;

/// How long all of it may take.
const INSTALLS_WITHIN: Duration = Duration::from_secs(900);

/// What installs packages there, and whether it may.
const LOOK: &str = r#"for m in apt-get apk dnf; do command -v $m >/dev/null && { echo "manager $m"; break; }; done
[ "$(id -u)" = 0 ] && echo root
sudo -n true >/dev/null 2>&1 && echo sudo
echo done"#;

/// Which of these are missing. Arguments: the manager and the packages.
const MISSING: &str = r#"m=$1
shift
for p; do
  case $m in
    apt-get) [ "$(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null)" = installed ];;
    apk) apk info -e "$p" >/dev/null 2>&1;;
    dnf) rpm -q --whatprovides "$p" >/dev/null 2>&1;;
  esac || echo "missing $p"
done
echo done"#;

/// Installs. Arguments: `sudo` or nothing, the manager and the packages.
const INSTALL: &str = r#"s=$1 m=$2
shift 2
[ -n "$s" ] && s='sudo -n'
log=$(mktemp) || exit
e='env LC_ALL=C DEBIAN_FRONTEND=noninteractive'
case $m in
  apt-get) $s $e apt-get update -q && $s $e apt-get install -q -y --no-install-recommends -- "$@";;
  apk) $s apk add --no-cache -- "$@";;
  dnf) $s $e dnf install -q -y --setopt=install_weak_deps=False -- "$@";;
esac >"$log" 2>&1 </dev/null && echo installed || tail -n 6 "$log"
rm -f "$log""#;

/// Installs what is missing. What somebody asked for and cannot be had is an error; of the usual ones it is only said.
///
/// # Errors
/// `packages-failed`; those of the provider.
pub async fn install(
    daytona: &Daytona,
    machine: &Arc<DaytonaMachine>,
    id: &str,
    packages: &Setting<Vec<String>>,
    blocked: bool,
) -> Result<()> {
    if packages.value.is_empty() {
        return Ok(());
    }
    let done = install_missing(daytona, machine, id, &packages.value, blocked).await;
    match done {
        Err(error) if error.code() == FAILED && !packages.origin.is_demand() => {
            tracing::warn!(%error, "the usual packages could not be installed at Daytona");
            Ok(())
        }
        done => done,
    }
}

const FAILED: &str = "packages-failed";

fn failed(what: String) -> Error {
    Error::Unavailable(
        Diagnosis::new(FAILED, "the packages could not be installed in the sandbox at Daytona")
            .cause(what)
            .fix("look at the names in `packages`, or use a snapshot that has them (`daytona_image`) and `packages = []`"),
    )
}

async fn install_missing(
    daytona: &Daytona,
    machine: &Arc<DaytonaMachine>,
    id: &str,
    packages: &[String],
    blocked: bool,
) -> Result<()> {
    let said = say(machine, LOOK, &[]).await?;
    let Some(program) = said.lines().find_map(|line| line.strip_prefix("manager ")) else {
        return Err(failed("it has none of apt-get, apk and dnf".to_owned()));
    };
    let manager = match program {
        "apk" => Manager::Apk,
        "dnf" => Manager::Dnf,
        _ => Manager::Apt,
    };
    let names = spelled_out(packages, manager)?;
    let mut args = vec![manager.program()];
    args.extend(names.iter().map(String::as_str));
    let said_missing = say(machine, MISSING, &args).await?;
    let missing: Vec<&str> = said_missing
        .lines()
        .filter_map(|line| line.strip_prefix("missing "))
        .filter(|name| names.iter().any(|known| known == name))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let has = |word: &str| said.lines().any(|line| line == word);
    let sudo = match (has("root"), has("sudo")) {
        (true, _) => "",
        (false, true) => "sudo",
        _ => {
            return Err(failed(format!(
                "{} missing, and its user may not install any",
                if missing.len() == 1 {
                    format!("{} is", missing[0])
                } else {
                    format!("{} are", missing.join(", "))
                }
            )));
        }
    };
    let network = |block: bool| async move {
        let told =
            daytona.network(id, block, None).await.map_err(|failure| failure::unavailable(&failure))?;
        if told.network_block_all == block { Ok(()) } else { Err(other_terms()) }
    };
    if blocked {
        network(false).await?;
    }
    let mut args = vec![sudo, manager.program()];
    args.extend(&missing);
    let installed = say(machine, INSTALL, &args).await;
    if blocked {
        network(true).await?;
    }
    let installed = installed?;
    if installed.lines().last() == Some("installed") {
        return Ok(());
    }
    Err(failed(format!("{}: {}", manager.program(), plain(tail(&installed).as_bytes()))))
}

/// The last that an installer said.
fn tail(said: &str) -> &str {
    let from = said.len().saturating_sub(300);
    said.get(from..).unwrap_or(said)
}

async fn say(machine: &Arc<DaytonaMachine>, script: &str, args: &[&str]) -> Result<String> {
    let argv = ["/bin/sh", "-c", script, "sh"].iter().chain(args).map(|word| (*word).to_owned()).collect();
    script_within(&**machine, argv, INSTALLS_WITHIN, false)
        .await
        .map_err(|failure| failure::unavailable(&failure))
}
