//! Sandboxes that were stopped where they are: started again, and not taken for dead.

use std::sync::atomic::Ordering;

use moltis_config::BackendChoice;
use moltis_sandbox::BackendName::{Daytona, Docker};
use moltis_sandbox::SessionKey;

use super::{REVIVED, Stopped};
use crate::fakes::{Engine, Machine, open, request};
use crate::store::Gone;

fn told() -> String {
    format!("daytona: {REVIVED}")
}

/// How many were ever made, how many live, how many are stopped.
fn count(engine: &Engine) -> (u32, usize, usize) {
    let (live, stopped) = (engine.live.lock().unwrap().len(), engine.stopped.lock().unwrap().len());
    (engine.opened.load(Ordering::SeqCst), live, stopped)
}

#[tokio::test]
async fn one_that_was_stopped_is_started_again_once_and_the_answer_says_so() {
    let machine = Machine::new(&[Daytona], BackendChoice::Named(Daytona));
    let runtime = machine.start().await;
    let first = open(&runtime, "s").await.unwrap();
    let engine = machine.engine(Daytona);
    engine.stop_all();
    let again = open(&runtime, "s").await.unwrap();
    assert_eq!((again.restarted, again.notes.contains(&told())), (None, true), "{:?}", again.notes);
    assert_eq!((again.generation, count(engine)), (first.generation, (1, 1, 0)));
    let next = open(&runtime, "s").await.unwrap();
    assert_eq!((next.restarted, next.notes.contains(&told())), (None, false), "{:?}", next.notes);
}

#[tokio::test]
async fn nobody_takes_one_that_was_stopped_for_dead() {
    let machine = Machine::new(&[Daytona], BackendChoice::Named(Daytona));
    let runtime = machine.start().await;
    open(&runtime, "s").await.unwrap();
    let engine = machine.engine(Daytona);
    assert_eq!(runtime.end_unused().await.unwrap().idle, 0, "whoever holds it stops it");
    engine.stop_all();
    assert_eq!((runtime.end_unused().await.unwrap().gone, count(engine)), (0, (1, 0, 1)));
    assert_eq!((runtime.prune(false).await.unwrap().kept, count(engine)), (1, (1, 0, 1)));
    assert_eq!((runtime.prune(true).await.unwrap().removed.len(), count(engine)), (1, (1, 0, 0)));
    // One that was removed there is.
    open(&runtime, "s").await.unwrap();
    engine.live.lock().unwrap().clear();
    assert_eq!(runtime.end_unused().await.unwrap().gone, 1);
}

#[tokio::test]
async fn one_that_is_to_be_another_or_is_ended_is_not_started_again() {
    let machine = Machine::new(&[Daytona], BackendChoice::Named(Daytona));
    let runtime = machine.start().await;
    let engine = machine.engine(Daytona);
    open(&runtime, "s").await.unwrap();
    engine.stop_all();
    let mut anew = request("s");
    anew.recreate = true;
    let opened = runtime.open_session(&anew).await.unwrap();
    assert!(opened.restarted.is_some() && !opened.notes.contains(&told()));
    assert_eq!(count(engine), (2, 1, 0));
    engine.stop_all();
    let key = SessionKey::new("s").unwrap();
    assert_eq!(runtime.stop_sandbox(&key).await.unwrap(), Stopped::Nothing);
    assert_eq!(count(engine), (2, 0, 0));
}

#[tokio::test]
async fn with_auto_it_stays_where_its_files_are() {
    let machine = Machine::new(&[Docker, Daytona], BackendChoice::Auto);
    machine.down(Docker, true);
    let runtime = machine.command();
    assert_eq!(open(&runtime, "s").await.unwrap().backend, Daytona);
    machine.engine(Daytona).stop_all();
    machine.down(Docker, false);
    let runtime = machine.command();
    let again = open(&runtime, "s").await.unwrap();
    assert_eq!((again.backend, again.restarted), (Daytona, None::<Gone>));
    assert_eq!(count(machine.engine(Daytona)), (1, 1, 0));
}
