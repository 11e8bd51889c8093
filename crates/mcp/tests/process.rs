//! Background commands by their tools.

use serde_json::{Value, json};

use crate::support::{BACKENDS, Here, mark, processes_with, until};

#[tokio::test]
async fn a_background_command_is_watched_fed_and_stopped() {
    for backend in BACKENDS {
        let here = Here::new(backend);
        let client = here.client().await;
        let line = "echo out; echo err >&2; while read -r line; do echo \"got $line\"; done; exit 3";
        let started = client.good("process_start", json!({ "command": line })).await;
        let process = started["process"].clone();
        let output = |out: Value, err: Value| {
            let args = json!({ "process": process, "stdout_from": out, "stderr_from": err, "wait_secs": 30 });
            client.good("process_output", args)
        };
        let (mut out, mut err) = (json!(0), json!(0));
        let mut printed = String::new();
        while printed.len() < "out\n".len() {
            let part = output(out, err).await;
            assert_eq!(part["running"], true);
            printed.push_str(part["stdout"].as_str().unwrap());
            (out, err) = (part["stdoutNext"].clone(), part["stderrNext"].clone());
        }
        assert_eq!((printed.as_str(), &out), ("out\n", &json!(4)));
        let sent = client.good("process_input", json!({ "process": process, "text": "one\n" })).await;
        assert_eq!(sent, json!({ "process": process, "bytes": 4, "closed": false }));
        let info = client.good("sandbox_info", json!({})).await;
        let known = &info["processes"][0];
        assert_eq!((&known["process"], &known["running"]), (&process, &json!(true)), "{info}");
        client.good("process_input", json!({ "process": process, "text": "two\n", "close": true })).await;
        let mut rest = String::new();
        let end = loop {
            let part = output(out, err).await;
            rest.push_str(part["stdout"].as_str().unwrap());
            if part["running"] == false {
                break part;
            }
            (out, err) = (part["stdoutNext"].clone(), part["stderrNext"].clone());
        };
        assert_eq!((rest.as_str(), &end["exitCode"]), ("got one\ngot two\n", &json!(3)));
        let all = client.good("process_output", json!({ "process": process })).await;
        assert_eq!((&all["stdout"], &all["stderr"]), (&json!("out\ngot one\ngot two\n"), &json!("err\n")));
        assert_eq!(
            client.bad("process_input", json!({ "process": process, "text": "x" })).await,
            "process-ended"
        );
        assert_eq!(client.good("process_stop", json!({ "process": process })).await["exitCode"], 3);

        let mark = mark();
        let command = format!(
            "trap 'echo caught' USR1; echo ready; setsid sleep {mark} & while :; do sleep 0.05; done"
        );
        let started = client.good("process_start", json!({ "command": command })).await;
        let process = started["process"].clone();
        let sees = async |wanted: &str| {
            loop {
                let part = client.good("process_output", json!({ "process": process, "wait_secs": 1 })).await;
                if part["stdout"].as_str().unwrap().contains(wanted) {
                    break;
                }
            }
        };
        sees("ready").await;
        let sent = client.good("process_stop", json!({ "process": process, "signal": "USR1" })).await;
        assert_eq!(sent, json!({ "process": process, "sent": "USR1" }));
        sees("caught").await;
        let stopped = client.good("process_stop", json!({ "process": process })).await;
        assert_eq!(stopped["cancelled"], true);
        until("something is left", || processes_with(&mark).is_empty()).await;
        for tool in ["process_output", "process_input", "process_stop"] {
            assert_eq!(client.bad(tool, json!({ "process": 99 })).await, "process-missing", "{tool}");
        }
        client.leave().await;
        here.end().await;
    }
}

#[tokio::test]
async fn nothing_is_started_for_a_process_that_cannot_be_there() {
    let here = Here::new(BACKENDS[0]);
    for client in [here.client().await, here.client_of("none").await] {
        assert_eq!(client.bad("process_output", json!({ "process": 1 })).await, "process-missing");
        assert_eq!(here.remains(), Vec::<String>::new());
        client.leave().await;
    }
    here.end().await;
}
