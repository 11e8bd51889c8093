//! `exec`: answers, limits, progress, and the end of what nobody waits for.

use moltis_sandbox::BackendName;
use rmcp::model::{CallToolRequest, ClientRequest};
use rmcp::service::PeerRequestOptions;
use serde_json::json;

use crate::support::{BACKENDS, Client, Here, mark, processes_with, text, until};

#[tokio::test]
async fn a_command_answers_with_all_there_is_to_know() {
    for backend in BACKENDS {
        let here = Here::new(backend);
        let client = here.client().await;
        let args = json!({
            "command": "printf 'in: '; cat; echo \"$A\" >&2; pwd; exit 3",
            "stdin": "given\n", "env": { "A": "set" }, "cwd": "/tmp",
        });
        let data = client.good("exec", args.clone()).await;
        let of = |name: &str| data[name].clone();
        let got = (of("exitCode"), of("stdout"), of("stderr"), of("stdoutBytes"), of("stdoutCut"));
        let want = (json!(3), json!("in: given\n/tmp\n"), json!("set\n"), json!(15), json!(0));
        assert_eq!(got, want);
        assert_eq!(
            (of("timedOut"), of("cancelled"), of("leftovers")),
            (json!(false), json!(false), json!([]))
        );
        assert_eq!(of("backend"), json!(backend));
        assert!(data.get("session").is_none());
        let told = client.call("exec", args).await;
        let told = text(&told);
        assert!(told.starts_with("in: given\n/tmp\n[standard error]\nset\n[exit code 3, "), "{told}");
        // The same sandbox as before, and its files with it.
        client.sh("echo kept > /tmp/kept-of-mcp").await;
        assert_eq!(client.sh("cat /tmp/kept-of-mcp; rm /tmp/kept-of-mcp").await, "kept\n");
        client.leave().await;
        here.end().await;
    }
}

#[tokio::test]
async fn long_output_is_head_and_tail_with_the_cut_marked_and_counted() {
    let here = Here::new(BackendName::Namespaces);
    let client = here.client().await;
    let data = client.good("exec", json!({ "command": "seq 1 100000" })).await;
    let (stdout, cut) = (data["stdout"].as_str().unwrap(), data["stdoutCut"].as_u64().unwrap());
    assert!(stdout.starts_with("1\n2\n") && stdout.ends_with("99999\n100000\n"), "{stdout}");
    assert_eq!(data["stdoutBytes"], 588_895);
    assert!(stdout.contains(&format!("[… {cut} bytes cut …]")), "{stdout}");
    assert!(stdout.len() < 17_000, "{}", stdout.len());
    let data = client.good("exec", json!({ "command": "seq 1 100000", "max_output_bytes": 64 })).await;
    assert!(data["stdout"].as_str().unwrap().len() < 150, "{data}");
    // No more than the configuration allows.
    let data = client.good("exec", json!({ "command": "seq 1 100000", "max_output_bytes": 9_000_000 })).await;
    assert_eq!(data["stdoutCut"], 588_895 - 204_800, "{data}");
    let data = client.good("exec", json!({ "command": "printf '\\377\\376'" })).await;
    assert_eq!((&data["stdout"], &data["stdoutEncoding"]), (&json!("//4="), &json!("base64")));
    client.leave().await;
    here.end().await;
}

#[tokio::test]
async fn a_command_whose_time_is_up_is_bad_news_with_its_output() {
    for backend in BACKENDS {
        let here = Here::new(backend);
        let client = here.client().await;
        let mark = mark();
        let command = format!("echo begun; setsid sleep {mark} & sleep {mark}");
        let result = client.call("exec", json!({ "command": command, "timeout_secs": 1 })).await;
        let data = result.structured_content.as_ref().unwrap();
        assert_eq!((&data["timedOut"], &data["exitCode"]), (&json!(true), &json!(124)));
        assert_eq!((result.is_error, &data["stdout"]), (Some(true), &json!("begun\n")));
        assert!(text(&result).contains("its time of 1 s was up"), "{result:?}");
        assert_eq!(processes_with(&mark), Vec::<String>::new());
        client.leave().await;
        here.end().await;
    }
}

#[tokio::test]
async fn progress_comes_while_it_runs_to_those_who_ask() {
    let here = Here::new(BackendName::Namespaces);
    let client = here.client().await;
    // It goes on only once its first line has been seen outside.
    let command = "echo first; while ! [ -e /tmp/go ]; do sleep 0.05; done; echo last";
    let params = Client::params("exec", json!({ "command": command, "timeout_secs": 60 }));
    let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
    let handle =
        client.service.send_cancellable_request(request, PeerRequestOptions::no_options()).await.unwrap();
    let token = handle.progress_token.clone();
    let seen = || client.progress.0.lock().unwrap().clone();
    let printed = |wanted: &str| {
        seen().iter().any(|told| told.message.as_ref().is_some_and(|message| message.contains(wanted)))
    };
    until("no progress", || printed("first")).await;
    client.sh("touch /tmp/go").await;
    handle.await_response().await.unwrap();
    until("no last progress", || printed("last")).await;
    let told: Vec<_> = seen().into_iter().filter(|told| told.progress_token == token).collect();
    assert!(told.windows(2).all(|pair| pair[0].progress < pair[1].progress), "{told:?}");
    assert!(told.iter().all(|told| told.total.is_some_and(|total| total >= 60.0)), "{told:?}");
    client.leave().await;
    here.end().await;
}

/// Starts a command that ends only when it is ended, with a child that hides from it.
async fn started(client: &Client, mark: &str) -> rmcp::service::RequestHandle<rmcp::RoleClient> {
    let command = format!("trap '' TERM; setsid sleep {mark} & sleep {mark}; sleep {mark}");
    let params = Client::params("exec", json!({ "command": command, "timeout_secs": 600 }));
    let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
    let handle =
        client.service.send_cancellable_request(request, PeerRequestOptions::no_options()).await.unwrap();
    until("it does not start", || processes_with(&format!("sleep {mark}")).len() >= 2).await;
    handle
}

#[tokio::test]
async fn a_call_that_is_taken_back_leaves_no_process() {
    for backend in BACKENDS {
        let here = Here::new(backend);
        let client = here.client_of("s").await;
        let mark = mark();
        let handle = started(&client, &mark).await;
        handle.cancel(Some("not wanted".to_owned())).await.unwrap();
        until("something is left", || processes_with(&mark).is_empty()).await;
        // The sandbox goes on.
        assert_eq!(client.sh("echo there").await, "there\n");
        client.leave().await;
        here.end().await;
    }
}

#[tokio::test]
async fn a_client_that_goes_leaves_no_process() {
    for backend in BACKENDS {
        for by_signal in [false, true] {
            let here = Here::new(backend);
            let client = here.client().await;
            let mark = mark();
            let _handle = started(&client, &mark).await;
            client.good("process_start", json!({ "command": format!("sleep {mark}") })).await;
            if by_signal {
                client.stop().await;
            } else {
                client.leave().await;
            }
            until("something is left", || processes_with(&mark).is_empty()).await;
            // The sandbox was the server's own.
            assert_eq!(here.remains(), Vec::<String>::new());
            here.end().await;
        }
    }
}

#[tokio::test]
async fn calls_run_at_the_same_time() {
    let here = Here::new(BackendName::Namespaces);
    let client = here.client().await;
    // Each waits for the other.
    let wait = |own: &str, other: &str| {
        let command =
            format!("touch /tmp/{own}; while ! [ -e /tmp/{other} ]; do sleep 0.02; done; echo {own}");
        client.good("exec", json!({ "command": command, "timeout_secs": 60 }))
    };
    let (a, b) = tokio::join!(wait("a", "b"), wait("b", "a"));
    assert_eq!((&a["stdout"], &b["stdout"]), (&json!("a\n"), &json!("b\n")));
    assert_eq!(a["sandboxId"], b["sandboxId"]);
    client.leave().await;
    here.end().await;
}

#[tokio::test]
async fn a_sandbox_that_died_is_made_anew_and_that_is_said() {
    let here = Here::new(BackendName::Namespaces);
    let client = here.client().await;
    client.sh("touch /tmp/there").await;
    let runtime = here.runtime();
    for info in runtime.sandboxes().await.unwrap() {
        runtime.remove_sandbox(&info.id).await.unwrap();
    }
    let result = client.call("exec", json!({ "command": "ls /tmp" })).await;
    let data = result.structured_content.as_ref().unwrap();
    assert_eq!((&data["stdout"], &data["restarted"]), (&json!(""), &json!("crash")), "{result:?}");
    assert!(text(&result).contains("[this is a new sandbox: "), "{result:?}");
    let next = client.good("exec", json!({ "command": "true" })).await;
    assert!(next.get("restarted").is_none());
    client.leave().await;
    here.end().await;
}
