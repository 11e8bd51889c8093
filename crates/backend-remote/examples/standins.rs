//! The stand-ins for providers, for other people's clients: `standins`. Prints where they are and what they take for keys as
//! one line of JSON, and ends with its input; then it prints what it was asked that no record knows.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::Write;
use std::sync::Arc;

use moltis_backend_namespaces::NamespacesBackend;
use moltis_testkit::remote::Asks;
use moltis_testkit::remote::daytona::{Age, Daytona};
use moltis_testkit::remote::vercel::Vercel;
use serde_json::json;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let machines = tempfile::tempdir().expect("a folder");
    let backend = Arc::new(NamespacesBackend::new(moltis_backend_namespaces::Config {
        data_dir: machines.path().to_owned(),
        config_dir: None,
    }));
    let vercel = Vercel::start_for(backend.clone(), Asks::Anybody).await;
    let daytona = Daytona::start_for(backend, Age::Newer, Asks::Anybody).await;
    let told = json!({
        "vercel": { "url": vercel.url(), "token": Vercel::TOKEN, "team": Vercel::TEAM, "project": Vercel::PROJECT },
        "daytona": { "url": daytona.url(), "key": Daytona::KEY },
    });
    writeln!(std::io::stdout(), "{told}").expect("output");
    let read = || std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    tokio::task::spawn_blocking(read).await.expect("a thread").expect("input");
    let wrong = [vercel.wrong(), daytona.wrong()].concat();
    let left = [vercel.machines(), daytona.machines()].concat();
    let told = json!({ "wrong": wrong, "left": left });
    writeln!(std::io::stdout(), "{told}").expect("output");
    // Those that a client left are ended by their own.
    vercel.expire().await;
    daytona.remove_all().await;
}
