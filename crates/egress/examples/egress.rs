//! The proxy beside tinyproxy and squid, taking turns over loopback: `egress --proxy PROGRAM [--short]`. Prints a table.
//! Those that are not installed are left out.

mod load;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use load::{Outcome, Sample, connects, gets, origins, throughput, tunnel};

/// Tunnels that do nothing.
const IDLE: usize = 1000;
/// What they may take.
const IDLE_MIB: f64 = 64.0;

/// A proxy that runs.
struct Contender {
    name: &'static str,
    child: Child,
    port: u16,
}

impl Drop for Contender {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What was measured of one.
#[derive(Clone, Default)]
struct Figures {
    connect: Sample,
    get: Sample,
    mib_per_second: Vec<f64>,
}

/// Milliseconds within which all but one of a hundred were done.
fn p99(sample: &Sample) -> f64 {
    let mut sorted = sample.micros.clone();
    sorted.sort_unstable();
    let at = sorted.len().saturating_sub(1).min(sorted.len() * 99 / 100);
    sorted.get(at).map_or(f64::NAN, |micros| f64::from(*micros) / 1000.0)
}

fn free_port() -> Outcome<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn moltis(program: &str, folder: &Path) -> Outcome<Contender> {
    let mut child = Command::new(program).arg(folder.join("log")).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    Ok(Contender { name: "Moltis", port: line.trim().parse()?, child })
}

fn tinyproxy(folder: &Path) -> Outcome<Contender> {
    let port = free_port()?;
    let file = folder.join("tinyproxy.conf");
    std::fs::write(
        &file,
        format!(
            "Port {port}\nListen 127.0.0.1\nTimeout 600\nMaxClients 4096\nLogLevel Critical\nLogFile \"{}\"\n\
             DisableViaHeader Yes\n",
            folder.join("tinyproxy.log").display()
        ),
    )?;
    let child = Command::new("tinyproxy").arg("-d").arg("-c").arg(&file).stdout(Stdio::null()).spawn()?;
    Ok(Contender { name: "tinyproxy", child, port })
}

fn squid(folder: &Path) -> Outcome<Contender> {
    let port = free_port()?;
    let file = folder.join("squid.conf");
    std::fs::write(
        &file,
        format!(
            "http_port 127.0.0.1:{port}\nhttp_access allow all\ncache deny all\ncache_mem 8 MB\naccess_log none\n\
             cache_store_log none\ncache_log /dev/null\npid_filename none\nnetdb_filename none\npinger_enable off\n\
             shutdown_lifetime 0 seconds\nmax_filedescriptors 8192\nvia off\nforwarded_for delete\n\
             visible_hostname bench\ncoredump_dir {}\n",
            folder.display()
        ),
    )?;
    let program = if Path::new("/usr/sbin/squid").exists() { "/usr/sbin/squid" } else { "squid" };
    let child = Command::new(program)
        .arg("-N")
        .arg("-f")
        .arg(&file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    Ok(Contender { name: "squid", child, port })
}

fn installed(program: &str) -> bool {
    ["/usr/bin", "/usr/sbin", "/usr/local/bin"].iter().any(|folder| Path::new(folder).join(program).exists())
}

async fn listening(contender: &Contender) -> Outcome<()> {
    for _ in 0..1000 {
        if TcpStream::connect(("127.0.0.1", contender.port)).await.is_ok() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Err(format!("{} does not listen", contender.name).into())
}

fn resident(child: &Child) -> Outcome<f64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS")?;
    let kib: f64 = line.split_whitespace().nth(1).ok_or("no VmRSS")?.parse()?;
    Ok(kib / 1024.0)
}

/// Memory of a proxy with idle tunnels, each of which has carried a byte.
async fn idle(contender: &Contender, port: u16) -> Outcome<f64> {
    let mut held = Vec::with_capacity(IDLE);
    for _ in 0..IDLE {
        let mut stream = tunnel(contender.port, port).await?;
        stream.write_all(&[1]).await?;
        stream.read_u8().await?;
        held.push(stream);
    }
    tokio::time::sleep(Duration::from_millis(1500)).await;
    resident(&contender.child)
}

async fn measured(contenders: &[Contender], short: bool) -> Outcome<Vec<Figures>> {
    let (rounds, slice, size) = match short {
        true => (2, Duration::from_millis(300), 64 << 20),
        false => (8, Duration::from_millis(1500), 1 << 30),
    };
    let origins = Arc::new(origins(size).await?);
    let mut figures = vec![Figures::default(); contenders.len()];
    for contender in contenders {
        listening(contender).await?;
        // Warm.
        connects(contender.port, origins.echo, slice / 4).await?;
        gets(contender.port, origins.page, slice / 4).await?;
    }
    for round in 0..rounds {
        for (contender, figures) in contenders.iter().zip(&mut figures) {
            let one = connects(contender.port, origins.echo, slice).await?;
            figures.connect.micros.extend(one.micros);
            figures.connect.time += one.time;
            let one = gets(contender.port, origins.page, slice).await?;
            figures.get.micros.extend(one.micros);
            figures.get.time += one.time;
            if round % 2 == 0 {
                let rate = throughput(contender.port, origins.source, size).await?;
                figures.mib_per_second.push(rate);
            }
        }
    }
    Ok(figures)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// One line: ours, the others, our ratio to the best of them.
fn line(name: &str, values: &[f64], high: bool, unit: &str) {
    let Some((own, others)) = values.split_first() else { return };
    let best = match high {
        true => others.iter().copied().fold(f64::NAN, f64::max),
        false => others.iter().copied().fold(f64::NAN, f64::min),
    };
    let shown: Vec<String> = values
        .iter()
        .map(|v| if *v < 10.0 { format!("{v:.2}{unit}") } else { format!("{v:.0}{unit}") })
        .collect();
    let ratio = own / best;
    let good = if high { ratio >= 1.0 } else { ratio <= 1.0 };
    let (ratio, good) = match best.is_nan() {
        true => ("–".into(), ""),
        false => (format!("{ratio:.2}"), if good { "pass" } else { "miss" }),
    };
    let target = if high { "≥ 1" } else { "≤ 1" };
    println!("| {name} | {} | {ratio} | {target} | {good} |", shown.join(" | "));
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let short = arguments.iter().any(|argument| argument == "--short");
    let at =
        arguments.iter().position(|argument| argument == "--proxy").ok_or("--proxy PROGRAM is missing")?;
    let program = arguments.get(at + 1).ok_or("--proxy PROGRAM is missing")?;
    let folder = tempfile::tempdir()?;
    // squid leaves root and must be able to enter.
    #[cfg(unix)]
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let mut contenders = vec![moltis(program, folder.path())?];
    for (name, start) in [("tinyproxy", tinyproxy as fn(&Path) -> Outcome<Contender>), ("squid", squid)] {
        match installed(name) {
            true => contenders.push(start(folder.path())?),
            false => println!("{name} is not installed: left out"),
        }
    }
    let runtime = Runtime::new()?;
    let figures = runtime.block_on(measured(&contenders, short))?;
    let names: Vec<&str> = contenders.iter().map(|contender| contender.name).collect();
    println!("| figure | {} | ratio to the best | target | |", names.join(" | "));
    println!("|---|{}---|---|---|", "---|".repeat(names.len()));
    let of = |value: &dyn Fn(&Figures) -> f64| figures.iter().map(value).collect::<Vec<_>>();
    line("tunnel, 64 bytes there and back, end: rate", &of(&|f| f.connect.rate()), true, "/s");
    line("the same: p99", &of(&|f| p99(&f.connect)), false, " ms");
    line("GET of 1 KiB, kept connections: rate", &of(&|f| f.get.rate()), true, "/s");
    line("the same: p99", &of(&|f| p99(&f.get)), false, " ms");
    line("one tunnel, much: throughput", &of(&|f| median(&f.mib_per_second)), true, " MiB/s");
    drop(contenders);
    let fresh = moltis(program, folder.path())?;
    let memory = runtime.block_on(async {
        let echo = origins(0).await?.echo;
        idle(&fresh, echo).await
    })?;
    let good = memory <= IDLE_MIB;
    let others = "– | ".repeat(names.len() - 1);
    let word = if good { "pass" } else { "miss" };
    println!("| {IDLE} idle tunnels: resident | {memory:.1} MiB | {others}– | ≤ {IDLE_MIB} MiB | {word} |");
    if good { Ok(()) } else { Err("too much memory".into()) }
}
