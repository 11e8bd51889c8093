//! Network `open` in a whole sandbox. That the host's loopback stays out of reach, and that the connector ends with the
//! sandbox, is proved beside the code with a stand-in for the sandbox; here it is the real one.

use std::io::Write;
use std::net::TcpListener;

use moltis_sandbox::{Backend, Network};

use super::support::{Host, asked, eventually, sh, spec};

#[tokio::test]
async fn open_has_an_interface_a_nameserver_and_no_way_to_the_hosts_loopback() {
    let host = Host::new();
    let mut open = spec("open");
    open.network = asked(Network::Open);
    let sandbox = match host.backend.open(&open).await {
        Ok(sandbox) => sandbox,
        // Neither connector is installed, the device is closed to this user, or the host has no route out.
        Err(error) if ["open-needs-pasta", "open-failed"].contains(&error.code()) => {
            eprintln!("not tried: {error:?}");
            assert_eq!(host.left_behind(), Vec::<String>::new());
            return;
        }
        Err(error) => panic!("{error:?}"),
    };
    let interfaces =
        sh(&sandbox, "ls /sys/class/net 2>/dev/null || tail -n +3 /proc/net/dev | cut -d: -f1").await.ok();
    assert!(interfaces.split_whitespace().any(|name| name != "lo"), "{interfaces}");
    let nameserver = sh(&sandbox, "cat /etc/resolv.conf").await.ok();
    assert!(
        ["nameserver 169.254.1.1\n", "nameserver 10.0.2.3\n"].contains(&nameserver.as_str()),
        "{nameserver}"
    );
    let routes = sh(&sandbox, "cat /proc/net/route").await.ok();
    let gateway = routes.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (to, by) = (fields.next()?, fields.next()?);
        let address = u32::from_str_radix(by, 16).ok()?;
        (to == "00000000").then(|| std::net::Ipv4Addr::from(address.to_ne_bytes()).to_string())
    });
    for bind in ["127.0.0.1", "0.0.0.0"] {
        let listener = TcpListener::bind((bind, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            if let Ok((mut stream, _)) = listener.accept() {
                let _ = stream.write_all(b"host");
            }
        });
        for address in ["127.0.0.1", gateway.as_deref().unwrap_or("127.0.0.1")] {
            let reach = format!("timeout 1 bash -c 'exec 3<>/dev/tcp/{address}/{port}; cat <&3'");
            assert_eq!(sh(&sandbox, &reach).await.stdout, "", "{address}:{port}");
        }
        // The control: it is there.
        let mut word = String::new();
        std::io::Read::read_to_string(
            &mut std::net::TcpStream::connect(("127.0.0.1", port)).unwrap(),
            &mut word,
        )
        .unwrap();
        assert_eq!(word, "host");
    }
    let agent = host.agent_pid(&open);
    let netns = std::fs::read_link(format!("/proc/{agent}/ns/net"));
    sandbox.close().await.unwrap();
    if let Ok(netns) = netns {
        assert!(eventually(|| !holders(&netns)).await, "something still holds {netns:?}");
    }
}

/// Whether any process that we may look into is in this network namespace or holds it open.
fn holders(netns: &std::path::Path) -> bool {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.into_iter().any(|entry| {
        let at = |name: &str| std::fs::read_link(entry.path().join(name)).is_ok_and(|link| link == netns);
        at("ns/net") || at("fd/0")
    })
}
