"""What the lab's parts share: checks that are counted as other test programs' are, commands with a limit, and waiting."""

import io
import json
import os
import re
import subprocess
import sys
import tarfile
import time
import traceback

MOLTIS = "/lab/checkout/target/release/moltis"
CHECKOUT = "/lab/checkout"
# Emulated, and on a machine that does other things, too: what does not come in this time does not come.
PATIENCE = 180

CHECKS = []
# A run of all tests has little time for the lab.
SHORT = "--short" in sys.argv


class Ended:
    """How a program ended."""

    def __init__(self, words, done):
        self.words, self.code, self.out, self.err = words, done.returncode, done.stdout, done.stderr

    def __str__(self):
        return f"{self.words}\nended with {self.code}\n{self.out}{self.err}"

    def ok(self):
        assert self.code == 0, str(self)
        return self.out

    def json(self):
        try:
            return json.loads(self.out)
        except ValueError:
            raise AssertionError(str(self)) from None


def run(*words, env=None, cwd=None, limit=600, data=None):
    """Runs a program to its end."""
    around = {**os.environ, **(env or {})}
    done = subprocess.run(words, env=around, cwd=cwd, timeout=limit, input=data, capture_output=True, text=True, errors="replace")
    return Ended(words, done)


def until(what, check, limit=PATIENCE):
    """Waits until something holds, and returns it."""
    end = time.monotonic() + limit
    while True:
        last = check()
        if last:
            return last
        assert time.monotonic() < end, f"not within {limit} s: {what}"
        time.sleep(0.3)


def same(found, expected):
    assert found == expected, f"found {found!r}, expected {expected!r}"


def check(function):
    """One check, in the order of the file. The later ones of a part may stand on the earlier ones."""
    CHECKS.append(function)
    return function


def long(function):
    """A check that the short form leaves out."""
    return function if SHORT else check(function)


def blocks(page, heading):
    """The shell blocks of one chapter of a document, in their order."""
    with open(os.path.join(CHECKOUT, page), encoding="utf-8") as file:
        text = file.read()
    chapter = re.search(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", text, re.S | re.M)
    assert chapter, f"{page} has no chapter {heading!r}"
    found = re.findall(r"^```sh no-run\n(.*?)^```", chapter[1], re.S | re.M)
    assert found, f"{heading!r} of {page} has no shell block"
    return found


def block(page, heading, number, of):
    """Runs one of them as a reader would, in the folder of the sources; `of` is how many there have to be."""
    found = blocks(page, heading)
    same(len(found), of)
    return run("sh", "-euxc", found[number], cwd=CHECKOUT)


IMAGE = "localhost/sandbox-base:busybox"


def small_image():
    """An archive of a root that is one static program under all its names: there may be no registry."""
    names = run("/bin/busybox", "--list").ok().split()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.add("/bin/busybox", "bin/busybox")
        for name in ("tmp", "etc", "proc", "sys", "dev", "run", "home", "root", "usr", "var", "usr/bin", "var/tmp"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name.endswith("tmp") else 0o755
            archive.addfile(folder)
        for name in names:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            if name != "busybox":
                archive.addfile(link)
    return out.getvalue()


def imported(*around):
    """Gives a Podman that image; `around` is what comes before the program's name."""
    words = [*around, "podman", "import", "--change", 'CMD ["/bin/sh"]', "-", IMAGE]
    done = subprocess.run(words, input=small_image(), capture_output=True, timeout=600, cwd="/")
    assert done.returncode == 0, done


def processes(user):
    """Command lines of a user's processes."""
    found = run("ps", "-u", user, "-o", "pid=,args=")
    return [line.strip() for line in found.out.splitlines()]


def main(label=""):
    """Runs all checks and counts them."""
    said, failed, passed = [], [], 0
    for function in CHECKS:
        name = function.__name__ + label
        begun = time.monotonic()
        try:
            function()
        except Exception:
            failed.append(name)
            said.append(f"---- {name} ----\n{traceback.format_exc()}")
            result = "FAILED"
        else:
            passed += 1
            result = "ok"
        print(f"test {name} ... {result} ({time.monotonic() - begun:.1f} s)", flush=True)
    if failed:
        names = "\n".join(f"    {name}" for name in failed)
        print("\nfailures:\n\n" + "\n".join(said) + f"\nfailures:\n{names}\n")
    word = "FAILED" if failed else "ok"
    print(f"test result: {word}. {passed} passed; {len(failed)} failed; 0 ignored; 0 measured; 0 filtered out")
    sys.exit(1 if failed else 0)
