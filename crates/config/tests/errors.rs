//! What errors say, word by word.

use moltis_config::Problem;
use moltis_sandbox::Diagnosis;

use crate::World;

/// The error for a line in `[tools.exec.sandbox]`, where it is line 2.
fn sandbox(line: &str) -> String {
    World::with(format!("[tools.exec.sandbox]\n{line}\n")).error()
}

#[test]
fn unknown_keys() {
    let cases = [
        (
            "[tools.exec.sandbox]\n  bakcend = 'docker'",
            "moltis.toml:2:3: unknown key `bakcend` in [tools.exec.sandbox]\n  did you mean `backend`?",
        ),
        (
            "backend = 'docker'",
            "moltis.toml:1:1: unknown key `backend`\n  `backend` belongs in [tools.exec.sandbox]",
        ),
        (
            "[tools.exec.sandbox]\nmemory_limit = '1G'",
            "moltis.toml:2:1: unknown key `memory_limit` in [tools.exec.sandbox]\n  \
             `memory_limit` belongs in [tools.exec.sandbox.resource_limits]",
        ),
        (
            "[gateway]\ndata_dir = '/x'",
            "moltis.toml:2:1: unknown key `data_dir` in [gateway]\n  `data_dir` belongs above the first table",
        ),
        (
            "[gateway]\nbackedn = 'x'",
            "moltis.toml:2:1: unknown key `backedn` in [gateway]\n  \
             did you mean `backend`? It belongs in [tools.exec.sandbox]",
        ),
        (
            "[sandbox]\nbackend = 'docker'",
            "moltis.toml:1:2: unknown key `sandbox`\n  did you mean [tools.exec.sandbox]?",
        ),
        (
            "[tools.exce.sandbox]\nbackend = 'docker'",
            "moltis.toml:1:8: unknown key `exce` in [tools]\n  did you mean [tools.exec]?",
        ),
        ("[gatway]\nport = 1", "moltis.toml:1:2: unknown key `gatway`\n  did you mean [gateway]?"),
        (
            "[gateway]\nxyzzy = 1",
            "moltis.toml:2:1: unknown key `xyzzy` in [gateway]\n  `moltis config show` lists every key",
        ),
        ("gateway = 1", "moltis.toml:1:1: unknown key `gateway`\n  `gateway` is a table: write [gateway]"),
        (
            "\"tools.exec\" = { default_timeout_secs = 1 }",
            "moltis.toml:1:1: unknown key `tools.exec`\n  did you mean [tools.exec]?",
        ),
        (
            "\"a\\u0007\\n\" = 1",
            "moltis.toml:1:1: unknown key `a\\u{7}\\n`\n  `moltis config show` lists every key",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(World::with(text).error(), expected);
    }
}

#[test]
fn wrong_values() {
    let cases = [
        (
            "backend = 'dokcer'",
            "moltis.toml:2:11: `tools.exec.sandbox.backend`: unknown word `dokcer`\n  \
             did you mean `docker`? There are `auto`, `apple-container`, `podman`, `docker`, `vercel`, `daytona`, \
             `namespaces`, `restricted-host`, `none`, `firecracker`, `wasm`",
        ),
        (
            "network = 'off'",
            "moltis.toml:2:11: `tools.exec.sandbox.network`: unknown word `off`\n  \
             use one of `blocked`, `trusted`, `open`",
        ),
        (
            "network = false",
            "moltis.toml:2:11: `tools.exec.sandbox.network`: \
             expected a string (one of \"blocked\", \"trusted\", \"open\"), found a boolean",
        ),
        (
            "allow_unenforced = 'true'",
            "moltis.toml:2:20: `tools.exec.sandbox.allow_unenforced`: expected true or false, found a string",
        ),
        (
            "trusted_domains = ['ok.example', 'https://x', 7]",
            "moltis.toml:2:34: `tools.exec.sandbox.trusted_domains`: `https://x` is not a domain pattern: \
             write the host alone, without the scheme\n\
             moltis.toml:2:47: `tools.exec.sandbox.trusted_domains`: \
             expected a string (domain pattern), found an integer",
        ),
        (
            "trusted_domains = 'x.example'",
            "moltis.toml:2:19: `tools.exec.sandbox.trusted_domains`: \
             expected a list of domain patterns, such as [\"a\", \"b\"], found a string",
        ),
        (
            "idle_ttl = 30",
            "moltis.toml:2:12: `tools.exec.sandbox.idle_ttl`: \
             expected a duration with its unit, such as \"60s\" or \"30m\", found an integer",
        ),
        (
            "idle_ttl = '0s'",
            "moltis.toml:2:12: `tools.exec.sandbox.idle_ttl`: `0s` is out of range\n  use 1s to 365d",
        ),
        (
            "home_quota = '1.5G'",
            "moltis.toml:2:14: `tools.exec.sandbox.home_quota`: `1.5G` is not a size: \
             fractions are not understood: take the smaller unit, such as 1536M for 1.5G",
        ),
        (
            "resource_limits.memory_limit = 512",
            "moltis.toml:2:32: `tools.exec.sandbox.resource_limits.memory_limit`: `512` is out of range\n  \
             use a size of 1M or more",
        ),
        (
            "resource_limits.cpu_quota = 0",
            "moltis.toml:2:29: `tools.exec.sandbox.resource_limits.cpu_quota`: `0` is out of range\n  \
             use a number of cores, 0.01 to 4096",
        ),
        (
            "resource_limits.cpu_quota = nan",
            "moltis.toml:2:29: `tools.exec.sandbox.resource_limits.cpu_quota`: `NaN` is out of range\n  \
             use a number of cores, 0.01 to 4096",
        ),
        (
            "resource_limits.pids_max = -1",
            "moltis.toml:2:28: `tools.exec.sandbox.resource_limits.pids_max`: `-1` is out of range\n  \
             use a whole number, 1 to 4194304",
        ),
        (
            "sandbox_uid = 0",
            "moltis.toml:2:15: `tools.exec.sandbox.sandbox_uid`: `0` is out of range\n  \
             use a whole number, 1 to 4294967294",
        ),
        (
            "vercel_vcpus = 3",
            "moltis.toml:2:16: `tools.exec.sandbox.vercel_vcpus`: `3` is out of range\n  \
             use 1 or an even number up to 64",
        ),
        (
            "workspace = 'code'",
            "moltis.toml:2:13: `tools.exec.sandbox.workspace`: `code` is not an absolute path: \
             it must begin with / or ~/",
        ),
        (
            "workspace = '~bob/code'",
            "moltis.toml:2:13: `tools.exec.sandbox.workspace`: `~bob/code` is not a path: \
             only ~/ is understood, not another user's home",
        ),
        (
            "shared_home_dir = '../x'",
            "moltis.toml:2:19: `tools.exec.sandbox.shared_home_dir`: `../x` is not a path: it must not contain `..`",
        ),
        (
            "shared_home_dir = './.'",
            "moltis.toml:2:19: `tools.exec.sandbox.shared_home_dir`: `./.` is not a path: \
             that is the data directory itself",
        ),
        (
            "packages = ['@pyhton', '-o=x']",
            "moltis.toml:2:13: `tools.exec.sandbox.packages`: unknown word `pyhton`\n  \
             did you mean `python`? There are `toolbox`, `build`, `database`, `java`, `media`, `network`, `python`\n\
             moltis.toml:2:24: `tools.exec.sandbox.packages`: `-o=x` is not a package name: \
             letters, digits, +, -, . and _ are allowed",
        ),
        (
            "vercel_api_url = 'http://api.example'",
            "moltis.toml:2:18: `tools.exec.sandbox.vercel_api_url`: `http://api.example` is not a URL: \
             plain http goes to loopback only: write https://",
        ),
        (
            "workspace_protect = ['a**']",
            "moltis.toml:2:22: `tools.exec.sandbox.workspace_protect`: `a**` is not a glob: \
             ** must be a whole part of the path, as in src/**/x",
        ),
        (
            "gpus = 'al'",
            "moltis.toml:2:8: `tools.exec.sandbox.gpus`: `al` is not a choice of GPUs: \
             write \"all\", or ids such as \"0,1\"",
        ),
        (
            "wasm_commands = { 'a b' = '/x', c = 'y' }",
            "moltis.toml:2:19: `tools.exec.sandbox.wasm_commands`: `a b` is not a command's name: \
             letters, digits and . _ + - are allowed\n\
             moltis.toml:2:37: `tools.exec.sandbox.wasm_commands`: `y` is not an absolute path: \
             it must begin with / or ~/",
        ),
    ];
    for (line, expected) in cases {
        assert_eq!(sandbox(line), expected, "{line}");
    }
    let gateway = World::with("[gateway]\nbind = 'localhost'\nport = 65536\nlog = 'inof'\n").error();
    assert_eq!(
        gateway,
        "moltis.toml:2:8: `gateway.bind`: `localhost` is not an IP address: write 127.0.0.1 or ::1\n\
         moltis.toml:3:8: `gateway.port`: `65536` is out of range\n  use a port, 0 to 65535\n\
         moltis.toml:4:7: `gateway.log`: unknown word `inof`\n  \
         did you mean `info`? There are `off`, `error`, `warn`, `info`, `debug`, `trace`"
    );
    for wrong in ["0", "1801", "-5"] {
        let text = World::with(format!("[tools.exec]\ndefault_timeout_secs = {wrong}\n")).error();
        assert_eq!(
            text,
            format!(
                "moltis.toml:2:24: `tools.exec.default_timeout_secs`: `{wrong}` is out of range\n  \
                 use a whole number, 1 to 1800"
            )
        );
    }
}

#[test]
fn wrong_mounts() {
    let mount = |text: &str| {
        let error = sandbox(&format!("mounts = [{{ {text} }}]"));
        error.lines().map(|line| line.replace("`tools.exec.sandbox.mounts`: ", "")).collect::<Vec<_>>()
    };
    let cases: [(&str, &[&str]); 11] = [
        ("source = '/a'", &["moltis.toml:2:11: a mount needs `target`"]),
        ("target = '/a'", &["moltis.toml:2:11: a mount needs `source`"]),
        (
            "source = '/a', target = '/b', mod = 'rw'",
            &[
                "moltis.toml:2:43: unknown field `mod`",
                "  did you mean `mode`? There are `source`, `target`, `mode`",
            ],
        ),
        (
            "source = '/a', target = '/b', mode = 'wr'",
            &["moltis.toml:2:50: unknown word `wr`", "  did you mean `rw`? There are `ro`, `rw`"],
        ),
        (
            "source = 'a', target = '/b'",
            &["moltis.toml:2:22: `a` is not an absolute path: it must begin with / or ~/"],
        ),
        (
            "source = '/a', target = 'b'",
            &["moltis.toml:2:37: `b` is not a mount target: it must be an absolute path of the sandbox"],
        ),
        (
            "source = '/a', target = '/x/../proc'",
            &["moltis.toml:2:37: `/x/../proc` is not a mount target: it must not contain `..`"],
        ),
        (
            "source = '/a', target = '//./proc/sys'",
            &[
                "moltis.toml:2:37: `//./proc/sys` is not a mount target: /proc, /sys and /dev belong to the sandbox",
            ],
        ),
        (
            "source = '/a', target = '/.'",
            &["moltis.toml:2:37: `/.` is not a mount target: / cannot be mounted over: use `rootfs`"],
        ),
        (
            "source = '/a', target = '/workspace/'",
            &["moltis.toml:2:37: `/workspace/` is not a mount target: that is where `workspace` shows"],
        ),
        (
            "source = '/a', target = '/b' }, { source = '/c', target = '/b/'",
            &["moltis.toml:2:45: `/b` is not a mount target: another mount has the same target"],
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(mount(text), expected, "{text}");
    }
}

#[test]
fn wrong_environment() {
    let cases = [
        (
            "MOLTIS_TOOLS__EXEC__SANDBOX__BAKCEND",
            "docker",
            "MOLTIS_TOOLS__EXEC__SANDBOX__BAKCEND: no key has this override\n  \
             did you mean MOLTIS_TOOLS__EXEC__SANDBOX__BACKEND?",
        ),
        (
            "MOLTIS_tools__exec__sandbox__backend",
            "docker",
            "MOLTIS_tools__exec__sandbox__backend: no key has this override\n  \
             did you mean MOLTIS_TOOLS__EXEC__SANDBOX__BACKEND?",
        ),
        (
            "MOLTIS__DATA_DIR",
            "/x",
            "MOLTIS__DATA_DIR: no key has this override\n  did you mean MOLTIS_DATA_DIR?",
        ),
        (
            "MOLTIS_X__Y",
            "hunter2",
            "MOLTIS_X__Y: no key has this override\n  unset it; `moltis config show` lists every key",
        ),
        (
            "MOLTIS_TOOLS__EXEC__SANDBOX__ALLOW_UNENFORCED",
            "true",
            "MOLTIS_TOOLS__EXEC__SANDBOX__ALLOW_UNENFORCED: `tools.exec.sandbox.allow_unenforced` \
             cannot be overridden by an environment variable\n  set it in moltis.toml, and unset the variable",
        ),
        (
            "MOLTIS_TOOLS__EXEC__SANDBOX__NO_NETWORK",
            "true",
            "MOLTIS_TOOLS__EXEC__SANDBOX__NO_NETWORK: `tools.exec.sandbox.no_network` \
             cannot be overridden by an environment variable\n  set MOLTIS_TOOLS__EXEC__SANDBOX__NETWORK",
        ),
        (
            "MOLTIS_TOOLS__EXEC__SANDBOX__NETWORK",
            "",
            "MOLTIS_TOOLS__EXEC__SANDBOX__NETWORK: `tools.exec.sandbox.network`: unknown word ``\n  \
             use one of `blocked`, `trusted`, `open`",
        ),
        (
            "MOLTIS_GATEWAY__PORT",
            "+80",
            "MOLTIS_GATEWAY__PORT: `gateway.port`: `+80` is not a whole number: write digits only",
        ),
        (
            "MOLTIS_TOOLS__EXEC__SANDBOX__RESOURCE_LIMITS__CPU_QUOTA",
            "1e3",
            "MOLTIS_TOOLS__EXEC__SANDBOX__RESOURCE_LIMITS__CPU_QUOTA: \
             `tools.exec.sandbox.resource_limits.cpu_quota`: `1e3` is not a number of cores: \
             write a number such as 0.5 or 2",
        ),
        (
            "VERCEL_TOKEN",
            "two words",
            "VERCEL_TOKEN: `tools.exec.sandbox.vercel_token`: \
             not a usable secret: it must be printable ASCII without spaces, and not empty",
        ),
    ];
    for (name, value, expected) in cases {
        assert_eq!(World::new().env(name, value).error(), expected);
    }
}

#[test]
fn a_data_directory_that_names_nothing() {
    let mut world = World::new();
    world.options.data_dir = Some("".into());
    assert_eq!(world.error(), "--data-dir: `data_dir`: `` is not a data directory: it is empty");
    world.options.data_dir = Some("x".into());
    world.options.current_dir = None;
    assert_eq!(
        world.error(),
        "--data-dir: `data_dir`: `x` is not a data directory: it is relative to an unknown directory"
    );
    // It is judged once, although it is read twice.
    assert_eq!(
        World::with("data_dir = 'x'").error(),
        "moltis.toml:1:12: `data_dir`: `x` is not an absolute path: it must begin with / or ~/"
    );
    let world = World::new();
    world.write("file", "", 0o600);
    let file = world.path("file");
    let world = world.env("MOLTIS_DATA_DIR", &file);
    assert_eq!(world.config().data_dir.value, file, "whoever uses the folder says what is wrong with it");
}

#[test]
fn values_that_are_not_utf_8() {
    use std::os::unix::ffi::OsStringExt;
    let bytes = std::ffi::OsString::from_vec(vec![0xff]);
    let world = World::new().env("MOLTIS_TOOLS__EXEC__SANDBOX__BACKEND", bytes.clone());
    assert_eq!(
        world.error(),
        "MOLTIS_TOOLS__EXEC__SANDBOX__BACKEND: `tools.exec.sandbox.backend`: its value is not UTF-8"
    );
    // Paths need not be UTF-8.
    let world = World::new().env("MOLTIS_DATA_DIR", bytes.clone());
    assert_eq!(world.config().data_dir.value, world.dir.path().join(bytes));
}

#[test]
fn keys_that_do_not_go_together() {
    let cases = [
        (
            "backend = 'podman'\nallow_host_podman = true\nallow_nested_podman = true",
            "moltis.toml:4:23: `allow_host_podman` and `allow_nested_podman` exclude each other\n  remove one of them",
        ),
        (
            "allow_nested_podman = true",
            "moltis.toml:2:23: `allow_nested_podman` needs `backend = \"podman\"`, and it is `auto`\n  \
             set `backend = \"podman\"`, or remove `allow_nested_podman`",
        ),
        (
            "pool = 5\nmax_sandboxes = 4",
            "moltis.toml:2:8: `pool` = 5 is more than `max_sandboxes` = 4\n  lower `pool`, or raise `max_sandboxes`",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(sandbox(text), expected);
    }
    assert_eq!(
        World::with("gateway.tls_key = '/k'").error(),
        "moltis.toml:1:19: `tls_key` is set without `tls_cert`\n  set both, or neither"
    );
    // A mode without a workspace waits for one.
    World::with("[tools.exec.sandbox]\nworkspace_mount = 'rw'").config();
}

#[test]
fn every_problem_of_every_source_is_told() {
    let world =
        World::with("bakcend = 1\n[gateway]\nport = 'x'\n").env("MOLTIS_A__B", "").env("VERCEL_TEAM_ID", " ");
    world.write(".moltis/secrets.toml", "nonsense", 0o600);
    let error = world.load().unwrap_err();
    let codes: Vec<_> = error.problems().iter().map(Problem::code).collect();
    assert_eq!(
        codes,
        [
            "config-unknown-key",
            "config-unknown-override",
            "config-syntax",
            "config-malformed",
            "config-wrong-type"
        ]
    );
}

#[test]
fn an_error_becomes_one_diagnosis() {
    let world = World::with("[gateway]\nprot = 1\nbindd = 2\n");
    let path = world.path(".config/moltis/moltis.toml");
    let error: moltis_sandbox::Error = world.load().unwrap_err().into();
    let expected = Diagnosis::new(
        "config-unknown-key",
        format!(
            "{}:2:1: unknown key `prot` in [gateway] (and one more problem: see `moltis config check`)",
            path.display()
        ),
    )
    .fix("did you mean `port`?");
    assert_eq!(error, moltis_sandbox::Error::Invalid(expected));
}

#[test]
fn syntax_errors_do_not_quote_the_line() {
    for text in [
        "vercel_token = hunter2",
        "vercel_token = 'hunter2",
        "[tools.exec.sandbox]\nvercel_token = \"hunter2\" hunter2",
        "vercel_token = 'hunter2'\nvercel_token = 'hunter2'",
        "'hunter2",
        "a = \"\\hunter2\"",
        "a = 12hunter2",
    ] {
        let error = World::with(text).load().unwrap_err();
        assert_eq!(error.problems().len(), 1);
        assert_eq!(error.problems()[0].code(), "config-syntax", "{text}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
}

#[test]
fn secrets_are_in_no_error() {
    for value in ["['hunter2']", "'hunter2 '", "{ a = 'hunter2' }", "\"hunter2\\n\"", "\"hunter2\\u0000\""] {
        for key in ["vercel_token", "daytona_api_key"] {
            let error = World::with(format!("[tools.exec.sandbox]\n{key} = {value}\n")).load().unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }
}

#[test]
fn a_file_that_is_wrong_everywhere_is_answered_at_once() {
    let text: String = (0..60_000).map(|n| format!("k{n} = 1\n")).collect();
    let error = World::with(text).load().unwrap_err();
    assert_eq!(error.problems().len(), 100);
}

#[test]
fn deep_nesting_is_refused_and_not_followed() {
    let deep =
        |open: &str, close: &str, count: usize| format!("{}{}", open.repeat(count), close.repeat(count));
    for text in [
        format!("a = {}", deep("[", "]", 200_000)),
        format!("a = {}", "[".repeat(500_000)),
        format!("a = {}", deep("{a=", "}", 100_000)),
        format!("{}a = 1", "a.".repeat(500_000)),
        format!("[{}a]", "a.".repeat(500_000)),
        format!("tools.{}a = 1", "exec.".repeat(100_000)),
    ] {
        assert!(!World::with(&text).load().unwrap_err().problems().is_empty());
    }
}
