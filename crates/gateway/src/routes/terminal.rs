//! A terminal in a session, over a WebSocket: bytes both ways, and what concerns the terminal itself as JSON.

use axum::extract::FromRequestParts;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::http::{HeaderValue, Method, StatusCode};
use moltis_sandbox::Exec;
use moltis_sandbox::exec::{Command, ExecControl, ExecEvent, ExecEvents, ExecRequest, TerminalSize};
use serde::Deserialize;
use serde_json::json;

use super::exec::Place;
use super::words;
use crate::auth::PROTOCOL;
use crate::call::Call;
use crate::problem::Problem;
use crate::route::{Answered, Bound, Route, Rule, query};
use crate::schema::{flag, number, text_of};

/// Largest message that is taken.
const MAX_MESSAGE: usize = 1 << 20;

/// Time that a terminal has once the gateway is about to end.
const LAST: std::time::Duration = std::time::Duration::from_secs(1);

/// Time that what ran on a terminal has to end once nobody is there.
const LEAVING: std::time::Duration = std::time::Duration::from_secs(15);

/// Starts bash where the sandbox has it, else sh.
const SHELL: &str = "if command -v bash >/dev/null 2>&1; then exec bash -i; else exec sh -i; fi";

/// The route.
pub fn routes() -> Vec<Route> {
    vec![
        Route::new(
            Method::GET,
            "/api/v1/sessions/{session}/terminal",
            "openTerminal",
            Rule::write(Bound::Session),
            open,
        )
        .about("Commands", "A terminal in the session, over a WebSocket")
        .more(
            "Binary messages are what is typed and what is printed. Text messages are JSON: to the gateway \
             `{\"type\":\"resize\",\"rows\":R,\"columns\":C}` and `{\"type\":\"signal\",\"signal\":N}`; from it `started`, \
             `exit` and `error`. The subprotocol is `moltis.v1`; a page adds `moltis.secret.SECRET`.",
        )
        .part("session", words::SESSION, words::session())
        .with([
            query("rows", "Lines of the terminal", number(1, 1000)),
            query("columns", "Characters of a line", number(1, 1000)),
            query("command", "A line for the shell instead of a shell", text_of(1, 65_536)),
            query("mustExist", "Refuse a session that is not there", flag()),
        ])
        .streaming()
        .runs()
        .fails(&[426])
        .answers_nothing(101, "The WebSocket is open"),
    ]
}

async fn open(mut call: Call) -> Answered {
    let key = call.session()?;
    let upgrade = WebSocketUpgrade::from_request_parts(&mut call.parts, &()).await.map_err(|why| {
        Problem::invalid("websocket-needed", "this is a WebSocket")
            .cause(why)
            .status(StatusCode::UPGRADE_REQUIRED)
            .header(axum::http::header::UPGRADE, "websocket")
    })?;
    let size = TerminalSize {
        rows: call.number("rows").and_then(|rows| rows.try_into().ok()).unwrap_or(24),
        columns: call.number("columns").and_then(|columns| columns.try_into().ok()).unwrap_or(80),
    };
    let line = call.query("command").unwrap_or(SHELL);
    if line.contains('\0') {
        return Err(Problem::invalid("command-nul", "a command cannot hold a NUL byte").fix("take it out"));
    }
    let mut request = ExecRequest::new(Command::Shell(line.into()));
    request.stdin = true;
    request.terminal = Some(size);
    request.env.push(("TERM".into(), "xterm-256color".into()));
    let runtime = call.runtime();
    let session = moltis_runtime::SessionRequest {
        caller: call.caller(),
        must_exist: call.says("mustExist"),
        ..moltis_runtime::SessionRequest::new(key)
    };
    let settings = moltis_runtime::Overrides::default();
    // A failure has a status of its own as long as nothing is open.
    let mut place = Place::open_unheard(runtime, settings, Some(session)).await?;
    let exec = place.exec(request).await?;
    let mut upgrade = upgrade.max_message_size(MAX_MESSAGE).max_frame_size(MAX_MESSAGE);
    if upgrade.requested_protocols().any(|word| word == PROTOCOL) {
        upgrade.set_selected_protocol(HeaderValue::from_static(PROTOCOL));
    }
    let (state, standing) = (std::sync::Arc::clone(&call.state), call.standing.clone());
    Ok(upgrade.on_upgrade(move |socket| async move {
        tokio::select! {
            () = drive(socket, place, exec, standing.ends()) => {}
            // Whoever restarts the gateway is not kept waiting by a terminal that nobody leaves.
            () = async { state.until_end().await; tokio::time::sleep(LAST).await } => {}
        }
    }))
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", deny_unknown_fields)]
enum Said {
    Resize { rows: u16, columns: u16 },
    Signal { signal: i32 },
}

/// Passes bytes both ways until either side ends, or until this is over. Input that the command does not read holds the other side back, and
/// output goes on meanwhile.
async fn drive(mut socket: WebSocket, place: Place, exec: Exec, over: impl Future<Output = ()>) {
    let mut over = std::pin::pin!(over);
    let Exec { mut events, control } = exec;
    let (to_command, mut from_socket) = tokio::sync::mpsc::channel::<Message>(16);
    let feeder = tokio::spawn(async move {
        let mut control = control;
        while let Some(message) = from_socket.recv().await {
            let done = match message {
                Message::Binary(bytes) => control.stdin(bytes).await,
                Message::Text(text) => match serde_json::from_str(text.as_str()) {
                    Ok(Said::Resize { rows, columns }) if rows > 0 && columns > 0 => {
                        control.resize(TerminalSize { rows, columns }).await
                    }
                    Ok(Said::Signal { signal }) if (1..=64).contains(&signal) => control.signal(signal).await,
                    // What is not understood is nobody's harm.
                    _ => Ok(()),
                },
                _ => Ok(()),
            };
            if done.is_err() {
                break;
            }
        }
        control
    });
    loop {
        // Not taken while the command is behind: then the other side waits, and output goes on.
        let typed = async {
            match to_command.reserve().await {
                Ok(permit) => Some((permit, socket_recv(&mut socket).await)),
                Err(_) => None,
            }
        };
        let event = tokio::select! {
            event = events.next() => event,
            () = &mut over => break,
            typed = typed => match typed {
                Some((permit, Some(message))) => {
                    permit.send(message);
                    continue;
                }
                _ => break,
            },
        };
        if !tell(&mut socket, &place, event).await {
            break;
        }
    }
    let _ = socket.send(Message::Close(None)).await;
    drop(to_command);
    leave(feeder, events).await;
}

/// Ends what ran on a terminal that somebody left, and waits until that is written down. What does not end in time ends
/// as its events are dropped.
async fn leave(feeder: tokio::task::JoinHandle<Box<dyn ExecControl>>, mut events: ExecEvents) {
    let aborts = feeder.abort_handle();
    let ending = async {
        if let Ok(mut control) = feeder.await {
            let _ = control.cancel().await;
            while let Some(Ok(event)) = events.next().await {
                if matches!(event, ExecEvent::Exit(_)) {
                    break;
                }
            }
        }
    };
    let _ = tokio::time::timeout(LEAVING, ending).await;
    aborts.abort();
}

/// The next message; nothing once the other side is gone.
async fn socket_recv(socket: &mut WebSocket) -> Option<Message> {
    match socket.recv().await {
        Some(Ok(Message::Close(_)) | Err(_)) | None => None,
        Some(Ok(message)) => Some(message),
    }
}

/// Tells what happened; whether it goes on.
async fn tell(
    socket: &mut WebSocket,
    place: &Place,
    event: Option<moltis_sandbox::Result<ExecEvent>>,
) -> bool {
    let text = |kind: &str, mut value: serde_json::Value| {
        value["type"] = kind.into();
        Message::Text(value.to_string().into())
    };
    let (message, goes_on) = match event {
        Some(Ok(ExecEvent::Stdout(bytes) | ExecEvent::Stderr(bytes))) => (Message::Binary(bytes), true),
        Some(Ok(ExecEvent::Started(process))) => {
            (text("started", place.told().map_or(json!({}), |told| told.started(process.0))), true)
        }
        Some(Ok(ExecEvent::Missed { .. })) => return true,
        Some(Ok(ExecEvent::Exit(outcome))) => {
            let ended = moltis_runtime::json::Ended::from(&outcome);
            (text("exit", serde_json::to_value(ended).unwrap_or_default()), false)
        }
        Some(Err(error)) => (text("error", Problem::from(error).document()), false),
        None => return false,
    };
    socket.send(message).await.is_ok() && goes_on
}
