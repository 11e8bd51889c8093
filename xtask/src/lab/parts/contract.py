"""The contract and the attacks, on machines of Firecracker's with a real kernel. Arguments: cases, or what they begin with."""

import os
import re
import subprocess
import sys
import tempfile

# Emulated processors take so much longer.
SLOW = "10"
# A sample of each chapter, for little time.
SAMPLE = [
    "exec.identity",
    "exec.sessions-apart",
    "streams.binary",
    "stdin.echo",
    "ends.setsid",
    "lifetime.found-again",
    "background.stop",
    "terminal.is-one",
    "files.write-and-read",
    "forward.half-close",
    "network.blocked",
    "limits.pids",
    "egress.half-close",
]

chosen = [word for word in sys.argv[1:] if not word.startswith("-")]
if "--short" in sys.argv:
    chosen = SAMPLE

with tempfile.TemporaryDirectory() as shared:
    around = {
        "MOLTIS_FIRECRACKER": "/lab/bin/firecracker",
        "MOLTIS_KERNEL": "/lab/guest/vmlinux",
        "MOLTIS_ROOTFS": "/lab/guest/rootfs.ext4",
        "MOLTIS_CACHE": shared,
        "MOLTIS_TESTKIT_SLOW": SLOW,
    }
    subprocess.run(["sysctl", "-qw", "net.ipv4.ip_forward=1"], check=True)
    run = subprocess.Popen(["/lab/bin/contract", *chosen], env={**os.environ, **around}, stdout=subprocess.PIPE, text=True)
    failed, passed, declared, others = {}, 0, 0, []
    last = None
    for line in run.stdout:
        found = re.match(r"(pass, no control|pass|declared|FAIL)\s+(\S+)\s+(\d+) ms", line)
        if not found:
            # What a case says stands below it.
            if last and line.startswith("    "):
                failed[last].append(line.strip())
            elif not line.startswith("    "):
                others.append(line.rstrip())
            continue
        word, name, millis = found[1], found[2], int(found[3])
        last = name if word == "FAIL" else None
        if last:
            failed[name] = []
        passed += word.startswith("pass")
        declared += word == "declared"
        end = {"pass": "ok", "pass, no control": "ok", "FAIL": "FAILED"}.get(word, word)
        print(f"test {name} ... {end} ({millis / 1000:.1f} s)", flush=True)
    code = run.wait()

if code and not failed:
    failed["the run"] = [f"it ended with {code}", *others]
if chosen and passed + declared + len(failed) < len(chosen):
    failed["the sample"] = [f"{len(chosen)} cases were asked for: {chosen}"]
if failed:
    said = "".join(f"---- {name} ----\n" + "\n".join(lines) + "\n" for name, lines in failed.items())
    print(f"\nfailures:\n\n{said}\nfailures:\n" + "".join(f"    {name}\n" for name in failed))
print(*others, sep="\n")
word = "FAILED" if failed else "ok"
print(f"test result: {word}. {passed} passed; {len(failed)} failed; 0 ignored; {declared} measured; 0 filtered out")
sys.exit(1 if failed else 0)
