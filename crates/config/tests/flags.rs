//! Values of flags, read by the rules of the keys.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use moltis_config::{
    BackendChoice, WorkspaceFlag, parse_backend, parse_cores, parse_duration, parse_memory, parse_network,
    parse_pids, parse_size, parse_timeout, parse_workspace_flag,
};
use moltis_sandbox::{BackendName, Diagnosis, MountMode, Network};

#[test]
fn words() {
    assert_eq!(parse_backend("auto"), Ok(BackendChoice::Auto));
    for name in BackendName::ALL {
        assert_eq!(parse_backend(name.as_str()), Ok(BackendChoice::Named(name)));
    }
    assert_eq!(parse_network("open"), Ok(Network::Open));
    let error = parse_network("opne").unwrap_err().diagnosis("--network");
    let expected = Diagnosis::new("config-unknown-word", "--network: unknown word `opne`")
        .fix("did you mean `open`? There are `blocked`, `trusted`, `open`");
    assert_eq!(error, expected);
}

#[test]
fn sizes() {
    let good = [
        ("0", 0),
        ("512", 512),
        ("512M", 512 << 20),
        ("512m", 512 << 20),
        ("1G", 1 << 30),
        ("1 GiB", 1 << 30),
        ("2kb", 2048),
        ("1T", 1 << 40),
        ("7B", 7),
    ];
    for (text, bytes) in good {
        assert_eq!(parse_size(text), Ok(bytes), "{text}");
    }
    for text in ["", "M", "-1", "1.5G", "1X", "99999999999999999999", "16777216T", "1G1", " 1", "1e3", "٣"] {
        assert!(parse_size(text).is_err(), "{text}");
    }
    assert_eq!(parse_memory("64M"), Ok(64 << 20));
    assert!(parse_memory("64").is_err());
}

#[test]
fn durations() {
    let good = [
        ("60s", Duration::from_secs(60)),
        ("30m", Duration::from_secs(1800)),
        ("1h30m", Duration::from_secs(5400)),
        ("1d", Duration::from_secs(86_400)),
        ("250ms", Duration::from_millis(250)),
        ("0s", Duration::ZERO),
    ];
    for (text, span) in good {
        assert_eq!(parse_duration(text), Ok(span), "{text}");
    }
    for text in [
        "",
        "60",
        "s",
        "1m1h",
        "1s1s",
        "1x",
        "-1s",
        "1.5s",
        "99999999999999999999s",
        "1s ",
        "99999999999999999d",
    ] {
        assert!(parse_duration(text).is_err(), "{text}");
    }
    assert_eq!(parse_timeout("30"), Ok(Duration::from_secs(30)));
    assert_eq!(parse_timeout("30m"), Ok(Duration::from_secs(1800)));
    for text in ["0", "1801", "99999", "99999999999999999999999", "31m", "500ms", "", "x", "-1"] {
        assert!(parse_timeout(text).is_err(), "{text}");
    }
    let expected = Diagnosis::new("config-out-of-range", "--timeout: `0` is out of range")
        .fix("use a time from 1 to 1800 seconds");
    assert_eq!(parse_timeout("0").unwrap_err().diagnosis("--timeout"), expected);
}

#[test]
fn numbers() {
    assert_eq!(parse_cores("0.5"), Ok(0.5));
    assert_eq!(parse_cores("2"), Ok(2.0));
    for text in ["0", "-1", "nan", "inf", "1e2", "", "5000", "x"] {
        assert!(parse_cores(text).is_err(), "{text}");
    }
    assert_eq!(parse_pids("10"), Ok(10));
    for text in ["0", "-1", "+1", "1.0", "", "5000000"] {
        assert!(parse_pids(text).is_err(), "{text}");
    }
}

#[test]
fn the_workspace_is_split_at_the_last_colon_and_only_before_its_words() {
    let cases: [(&[u8], &[u8], Option<MountMode>); 8] = [
        (b"/a", b"/a", None),
        (b"/a:ro", b"/a", Some(MountMode::Ro)),
        (b"a:rw", b"a", Some(MountMode::Rw)),
        (b"/a:b", b"/a:b", None),
        (b"/a:ro:rw", b"/a:ro", Some(MountMode::Rw)),
        (b"/a:RO", b"/a:RO", None),
        (b"/a/:ro/", b"/a/:ro/", None),
        (b"/\xff:ro", b"/\xff", Some(MountMode::Ro)),
    ];
    for (text, dir, mode) in cases {
        let expected = WorkspaceFlag { dir: OsStr::from_bytes(dir).into(), mode };
        assert_eq!(parse_workspace_flag(OsStr::from_bytes(text)), Ok(expected));
    }
    for text in ["", ":ro", ":rw"] {
        assert!(parse_workspace_flag(OsStr::new(text)).is_err());
    }
}
