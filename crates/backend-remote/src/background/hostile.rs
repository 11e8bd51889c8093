//! What a machine says that is not what the scripts say.

use std::collections::VecDeque;
use std::sync::Mutex;

use super::*;
use crate::machine::{Machine, Output};
use crate::sandbox::Told;

/// A piece of what a run prints, or what goes wrong instead.
type Line = Result<Option<String>, Failure>;

/// Answers every look with the next of these, and counts.
struct Says {
    answers: Mutex<VecDeque<Vec<Line>>>,
    runs: Mutex<u32>,
}

struct Printed(VecDeque<Line>);

#[async_trait]
impl Output for Printed {
    async fn next(&mut self) -> Result<Option<Piece>, Failure> {
        self.0.pop_front().unwrap_or(Ok(None)).map(|text| text.map(Piece::Stdout))
    }
}

#[async_trait]
impl Machine for Says {
    async fn run(&self, _: Run) -> Result<Box<dyn Output>, Failure> {
        *self.runs.lock().unwrap() += 1;
        let answer = self.answers.lock().unwrap().pop_front().unwrap_or_default();
        Ok(Box::new(Printed(answer.into())))
    }

    async fn detach(&self, _: &str, _: Run) -> Result<(), Failure> {
        Ok(())
    }

    async fn put(&self, _: Vec<(String, Bytes)>) -> Result<(), Failure> {
        Ok(())
    }

    async fn lives(&self) -> Result<bool, Failure> {
        Ok(true)
    }

    async fn keep(&self, _: Duration) -> Result<(), Failure> {
        Ok(())
    }
}

fn says(answers: Vec<Vec<Result<Option<String>, Failure>>>) -> (Arc<Says>, Arc<Remote>) {
    let machine = Arc::new(Says { answers: Mutex::new(answers.into()), runs: Mutex::new(0) });
    let remote = Remote::new(Arc::clone(&machine) as Arc<dyn Machine>, "/", &Told::default(), 0);
    (machine, Arc::new(remote))
}

fn line(text: &str) -> Vec<Result<Option<String>, Failure>> {
    vec![Ok(Some(format!("{text}\n")))]
}

fn control(remote: &Arc<Remote>) -> Control {
    let named = Named::new().unwrap();
    let ending = Descent::new(&remote.machine, remote.kept, named).take();
    Control { remote: Arc::clone(remote), tag: "t".into(), pid: 7, ending: Arc::new(ending) }
}

#[tokio::test]
async fn input_is_lost_where_nobody_says_that_it_was_taken() {
    let broken = || vec![Err(Failure::Broken("cut".into()))];
    let (machine, remote) = says(vec![line("taken"), broken(), vec![], line("closed"), broken()]);
    let mut control = control(&remote);
    let mut told = Vec::new();
    for _ in 0..4 {
        let done = control.stdin(Bytes::from_static(b"x")).await;
        told.push(done.map_err(|error| (error.kind(), error.code().to_owned())));
    }
    let lost = Err(("lost", "agent-lost".to_owned()));
    assert_eq!(told, [Ok(()), lost.clone(), lost, Ok(())]);
    let error = control.signal(15).await.unwrap_err();
    assert_eq!((error.kind(), *machine.runs.lock().unwrap()), ("lost", 5), "no signal is sent twice");
    // What is closed takes nothing of the rest either.
    let (machine, remote) = says(vec![line("closed")]);
    self::control(&remote).stdin(vec![b'x'; 3 * INPUT].into()).await.unwrap();
    assert_eq!(*machine.runs.lock().unwrap(), 1);
}

#[tokio::test]
async fn a_machine_that_says_at_once_that_there_is_more_is_not_asked_at_once() {
    let mut answers: Vec<_> = (0..4).map(|_| line("more")).collect();
    // Nor does an offset that moves by itself, or by a byte, change that.
    answers.push(line(&format!("o 5000000 {}\nmore", STANDARD.encode("x"))));
    answers.push(line("over 0 - 1.00 2.00 0 , 5000001 0"));
    let (machine, remote) = says(answers);
    let watch = Watch { remote: Arc::clone(&remote), tag: "t".into(), at: [0; 2], bytes: 0, follow: false };
    let (sender, mut receiver) = mpsc::channel(16);
    let began = Instant::now();
    watch.run(&sender).await.unwrap();
    assert!(began.elapsed() >= Duration::from_millis(200 + 400 + 600 + 800 + 1000), "{:?}", began.elapsed());
    assert_eq!(*machine.runs.lock().unwrap(), 6);
    drop(sender);
    let mut events = Vec::new();
    while let Some(event) = receiver.recv().await {
        events.push(event.unwrap());
    }
    let [
        ExecEvent::Missed { stdout: 5_000_000, stderr: 0 },
        ExecEvent::Stdout(said),
        ExecEvent::Exit(outcome),
    ] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!((&said[..], outcome.status), (&b"x"[..], Status::Code(0)));
}
