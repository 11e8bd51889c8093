//! Using the proxy up, and holding on to what it no longer allows.

use std::time::Duration;

use moltis_egress::{Action, Event, ProxyLimits};
use moltis_sandbox::Promise;

use super::road::{entries_are_plain, need_trusted, works};
use super::world::{Road, World, policy, proxy};
use crate::attack::{PROBES, all_reached, all_stopped, inside, outside};
use crate::case::Control;
use crate::run::{argv, eventually};
use crate::{Case, Ctx, Fail, Verdict, case, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("egress.removed-live", removed_live)
            .control(|ctx| Box::pin(kept_control(ctx)))
            .law(1)
            .limit(60),
        case!("egress.many-processes", many_processes)
            .control(|ctx| Box::pin(many_control(ctx)))
            .law(1)
            .limit(90),
        case!("egress.header-flood", header_flood).control(|ctx| Box::pin(flood_control(ctx))).limit(60),
        case!("egress.slow-headers", slow_headers).control(|ctx| Box::pin(slow_control(ctx))).limit(60),
        case!("egress.idle-connections", idle_connections)
            .control(|ctx| Box::pin(idle_control(ctx)))
            .limit(90)
            .alone(),
    ]
}

fn usual(world: &World) -> Vec<String> {
    vec!["good.test".to_owned(), format!("127.0.0.1:{}", world.good.port)]
}

async fn kept_control(_ctx: &Ctx) -> Result<Control, Fail> {
    let world = World::new().await?;
    let (port, _task) = world.naive().await?;
    all_reached(&outside(&[&format!("kept-open={port}:{}", world.good.port)]).await?, &[])
}

/// What is taken off the list is cut while it is open, not only refused the next time.
async fn removed_live(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_trusted!(ctx);
    let world = World::new().await?;
    let (proxy, entries) = proxy(&world, ProxyLimits::default());
    let road = Road::open(ctx, &proxy, "attacked", &usual(&world)).await?;
    let call = format!("kept-open={}:{}", road.port, world.good.port);
    let mut request = argv(&["python3", "-c", PROBES, &call]);
    request.timeout = Some(Duration::from_secs(25));
    let live = road.place.start(request).await?;
    let open = eventually(Duration::from_secs(15), async || Ok(world.good.heard(b"first"))).await?;
    ensure!(open, "there is no tunnel that could be cut");
    road.policy.send_replace(policy(&[]));
    let ran = live.finish(Duration::from_secs(30)).await?;
    ensure!(ran.text().starts_with("kept-open STOPPED cut, "), "{:?}, {:?}", ran.text(), ran.errors());
    ensure!(!world.good.heard(b"again"), "connected again");
    let ends = entries.all().iter().filter(|entry| entry.event == Event::Close).count();
    ensure_eq!(ends, 1, "ends written down");
    Ok(Verdict::Pass)
}

async fn many_control(_ctx: &Ctx) -> Result<Control, Fail> {
    let world = World::new().await?;
    let (port, _task) = world.naive().await?;
    let call = format!("many-at-once={port}:{}:{}:4:4", world.good.port, world.evil.port);
    all_reached(&outside(&[&call]).await?, &[])
}

async fn many_processes(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_trusted!(ctx);
    let world = World::new().await?;
    let (proxy, entries) = proxy(&world, ProxyLimits::default());
    let road = Road::open(ctx, &proxy, "attacked", &usual(&world)).await?;
    let call = format!("many-at-once={}:{}:{}:24:8", road.port, world.good.port, world.evil.port);
    let found = inside(&road.place, &[&call]).await?;
    all_stopped(&found)?;
    // Whoever asked for what is allowed got it, however many asked for something else.
    ensure_eq!(found[0].detail, "96 good, 96 stopped", "what came of them");
    ensure!(!world.evil.heard_anything(), "what nobody may reach was reached");
    let denied = entries.all().iter().filter(|entry| entry.action == Action::Denied).count();
    ensure_eq!(denied, 96, "refusals written down");
    entries_are_plain(&entries)?;
    Ok(Verdict::Pass)
}

/// As much of a head as nobody needs.
const HEAD: usize = 8 << 20;

async fn flood_control(_ctx: &Ctx) -> Result<Control, Fail> {
    // A server that waits for the end of a head, as many do.
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
    let port = listener.local_addr()?.port();
    let _task = super::world::Task::of(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
        }
    });
    all_reached(&outside(&[&format!("flood-of-headers={port}:{HEAD}")]).await?, &[])
}

async fn header_flood(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_trusted!(ctx);
    let world = World::new().await?;
    let (proxy, _entries) = proxy(&world, ProxyLimits::default());
    let road = Road::open(ctx, &proxy, "attacked", &usual(&world)).await?;
    let beside = Road::open(ctx, &proxy, "beside", &usual(&world)).await?;
    works(&road, &world).await?;
    let before = crate::process::memory(std::process::id()).unwrap_or(0);
    let call = format!("flood-of-headers={}:{HEAD}", road.port);
    let calls = [call.as_str(); 4];
    let (found, served) = tokio::join!(inside(&road.place, &calls), works(&beside, &world));
    all_stopped(&found?)?;
    served?;
    let after = crate::process::memory(std::process::id()).unwrap_or(0);
    ensure!(after < before + (32 << 20), "the proxy grew from {before} to {after} bytes");
    works(&road, &world).await?;
    Ok(Verdict::Pass)
}

async fn slow_control(_ctx: &Ctx) -> Result<Control, Fail> {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
    let port = listener.local_addr()?.port();
    let _task = super::world::Task::of(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
        }
    });
    all_reached(&outside(&[&format!("slow-header={port}:8")]).await?, &[])
}

async fn slow_headers(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_trusted!(ctx);
    let world = World::new().await?;
    let limits = ProxyLimits { header_time: Duration::from_secs(3), ..ProxyLimits::default() };
    let (proxy, _entries) = proxy(&world, limits);
    let road = Road::open(ctx, &proxy, "attacked", &usual(&world)).await?;
    let call = format!("slow-header={}:8", road.port);
    let calls = [call.as_str()];
    let (found, served) = tokio::join!(inside(&road.place, &calls), works(&road, &world));
    all_stopped(&found?)?;
    served?;
    Ok(Verdict::Pass)
}

/// Connections that say nothing.
const IDLE: usize = 10_000;

async fn idle_control(_ctx: &Ctx) -> Result<Control, Fail> {
    // What keeps every connection that comes.
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
    let port = listener.local_addr()?.port();
    let _task = super::world::Task::of(async move {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            kept.push(stream);
        }
    });
    // Fewer, since both ends are this machine's here.
    all_reached(&outside(&[&format!("idle-connections={port}:400:2")]).await?, &[])
}

async fn idle_connections(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_trusted!(ctx);
    let world = World::new().await?;
    let limits = ProxyLimits { connections: 400, session_connections: 200, ..ProxyLimits::default() };
    let most = limits.session_connections;
    let (proxy, _entries) = proxy(&world, limits);
    let road = Road::open(ctx, &proxy, "attacked", &usual(&world)).await?;
    let beside = Road::open(ctx, &proxy, "beside", &usual(&world)).await?;
    works(&road, &world).await?;
    let call = format!("idle-connections={}:{IDLE}:8", road.port);
    let calls = [call.as_str()];
    let attack = inside(&road.place, &calls);
    let watched = async {
        let filled =
            eventually(Duration::from_secs(10), async || Ok(road.session.connections() >= most)).await?;
        ensure!(filled, "only {} connections arrive", road.session.connections());
        let mut served = 0;
        while served < 3 {
            works(&beside, &world).await?;
            served += 1;
            let open = road.session.connections();
            // Those that are being turned away are counted for a moment.
            ensure!(open <= most + 64, "{open} connections are open, of {most} that may be");
        }
        Ok::<_, Fail>(())
    };
    let (found, watched) = tokio::join!(attack, watched);
    watched?;
    all_stopped(&found?)?;
    // They are gone, and so is what they took.
    let again = eventually(Duration::from_secs(20), async || Ok(works(&road, &world).await.is_ok())).await?;
    ensure!(again, "the session is not served after its idle connections: {}", road.session.connections());
    Ok(Verdict::Pass)
}
