"""The units of deploy/, installed and started as docs/deploy.md says, by its own commands."""

import json
import os
import re
import urllib.error
import urllib.request

from lab import IMAGE, block, check, imported, long, main, processes, run, same, until

PAGE = "docs/deploy.md"
URL = "http://127.0.0.1:13131"
GROUP = "/sys/fs/cgroup/system.slice/moltis.service"
KEY = {}
# As docs/deploy.md has it, with Podman and without.
AROUND = {"MOLTIS_DATA_DIR": "/var/lib/moltis", "MOLTIS_CONFIG_DIR": "/etc/moltis", "HOME": "/var/lib/moltis"}


def moltis(*words):
    """The program as the service's user, beside the gateway."""
    around = [f"{name}={value}" for name, value in AROUND.items()]
    return run("sudo", "-u", "moltis", "env", *around, "/usr/local/bin/moltis", *words, cwd="/")


def show(name, unit="moltis"):
    return run("systemctl", "show", "--value", "-p", name, unit).ok().strip()


def journal(unit="moltis"):
    return run("journalctl", "-u", unit, "-o", "cat", "--no-pager", "-n", "200").out


def asked(method, path, body=None, limit=300):
    """Status and answer of a request to the API."""
    headers = {"Content-Type": "application/json"}
    if "key" in KEY:
        headers["Authorization"] = f"Bearer {KEY['key']}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data=data, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=limit) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def told(method, path, body=None, limit=300):
    """The answer of a request that has to succeed."""
    status, text = asked(method, path, body, limit)
    assert status in (200, 201), f"{method} {path}: {status}\n{text}\n{journal()}"
    return json.loads(text)


def executed(session, command, **more):
    """How a command of a session ended."""
    answer = told("POST", f"/api/v1/sessions/{session}/exec", {"command": command, "timeoutSecs": 120, **more})
    assert answer["exitCode"] == 0, answer
    return answer


def ready():
    until("the gateway is ready", lambda: answers("/readyz") == 200)


def answers(path):
    try:
        return asked("GET", path, limit=30)[0]
    except OSError:
        return None


def guests():
    """What runs in sandboxes, but for what waits for nobody: Podman's and systemd's own of that user."""
    own = ("catatonit", "systemd", "sd-pam", "dbus-daemon", "podman", "slirp4netns")
    return [line for line in processes("moltis") if not any(word in line for word in own)]


def started(session):
    """A background command that writes down the time; its id."""
    body = {"command": "while :; do date +%s >> ticks; sleep 1; done"}
    return told("POST", f"/api/v1/sessions/{session}/processes", body)["process"]


def goes_on(session, process):
    """Holds if the background command still writes."""
    found = told("GET", f"/api/v1/sessions/{session}/processes/{process}")
    assert found["running"], found
    before = executed(session, "wc -l < ticks")
    until("the background command goes on", lambda: executed(session, "wc -l < ticks")["stdout"] != before["stdout"])
    return before


@check
def the_units_commands_install_and_start_it():
    block(PAGE, "systemd", 0, of=3).ok()
    same(show("ActiveState"), "active")
    same(show("SubState"), "running")
    same(show("Type"), "notify")
    same(run("systemctl", "is-enabled", "moltis").out, "enabled\n")
    # It says what it is, as `Type=notify` lets it.
    assert "13131" in show("StatusText"), show("StatusText")


@check
def it_answers_and_says_what_it_took():
    ready()
    same(answers("/healthz"), 200)
    said = block(PAGE, "systemd", 1, of=3).ok()
    assert "sandbox: namespaces backend" in said, said
    assert re.search(r"^mt_", said, re.M), said
    same(run("stat", "-c", "%a %U:%G", "/var/lib/moltis", "/var/lib/moltis/admin-token").ok(), "700 moltis:moltis\n600 moltis:moltis\n")


@check
def it_is_hardened():
    said = run("systemd-analyze", "security", "moltis", "--no-pager").ok()
    level = float(re.search(r"Overall exposure level for moltis.service: ([0-9.]+)", said)[1])
    assert level <= 5.0, said
    run("systemd-analyze", "verify", "/etc/systemd/system/moltis.service").ok()
    status = open(f"/proc/{show('MainPID')}/status", encoding="utf-8").read()
    for line in ("NoNewPrivs:\t1", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "Seccomp:\t2"):
        assert f"\n{line}\n" in status, status


@check
def a_key_is_made_beside_it():
    said = moltis("gateway", "key", "create", "lab", "--scope", "operator.admin").ok()
    KEY["key"] = re.search(r"mk_\S+", said)[0]
    same(told("GET", "/api/v1/status")["backend"], "namespaces")


@check
def podman_without_its_drop_in_is_told_apart_and_leaves_no_process():
    found = {backend["backend"]: backend for backend in told("GET", "/api/v1/backends")["backends"]}
    same(found["podman"]["usable"], False)
    same(found["podman"]["reason"]["code"], "podman-no-ids")
    assert not [line for line in processes("moltis") if "catatonit" in line or "podman" in line]


@check
def a_command_runs_over_http_with_all_limits_kept():
    answer = executed("lab", "id -un; hostname; cat /proc/self/cgroup; echo $$")
    same((answer["backend"], answer["notEnforced"]), ("namespaces", []))
    same(answer["stdout"].splitlines()[:2], ["sandbox", "sandbox"])
    groups = run("find", GROUP, "-path", "*/moltis/*/*", "-name", "memory.max").ok().split()
    limits = [open(group, encoding="utf-8").read().strip() for group in groups]
    assert len(limits) == 1 and int(limits[0]) <= 2 << 30, (groups, limits)


@long
def a_reload_reads_the_configuration_and_drops_nothing():
    process = started("lab")
    pid = show("MainPID")
    with open("/etc/moltis/moltis.toml", "w", encoding="utf-8") as file:
        file.write("[tools.exec]\ndefault_timeout_secs = 7\n")
    run("systemctl", "reload", "moltis").ok()
    slow = {"command": "sleep 100"}
    until("the new time-out holds", lambda: told("POST", "/api/v1/sessions/lab/exec", slow)["durationMs"] < 25_000)
    same((show("MainPID"), show("ActiveState")), (pid, "active"))
    goes_on("lab", process)
    with open("/etc/moltis/moltis.toml", "w", encoding="utf-8") as file:
        file.write("[tools.exec\n")
    run("systemctl", "reload", "moltis")
    until("the log tells of the wrong file", lambda: "moltis.toml" in journal())
    same(answers("/readyz"), 200)
    os.remove("/etc/moltis/moltis.toml")
    run("systemctl", "reload", "moltis").ok()


def restarted_around(session, process):
    """Holds if a restart changes nothing for the session's sandbox and its background command, and a kill neither."""
    before = goes_on(session, process)
    pid = show("MainPID")
    run("systemctl", "restart", "moltis").ok()
    ready()
    again = show("MainPID")
    assert again != pid
    same(goes_on(session, process)["sandboxId"], before["sandboxId"])
    run("kill", "-KILL", again).ok()
    until("another one runs", lambda: show("MainPID") not in ("0", again))
    ready()
    same(goes_on(session, process)["sandboxId"], before["sandboxId"])


def emptied():
    """Ends all sandboxes."""
    for sandbox in moltis("sandbox", "ps", "--json").json()["sandboxes"]:
        moltis("sandbox", "rm", sandbox["id"]).ok()


@check
def limits_are_scopes_where_systemd_is_old_and_a_restart_keeps_what_runs():
    emptied()
    block(PAGE, "systemd", 2, of=3).ok()
    ready()
    answer = executed("kept", "cat /proc/self/cgroup; pwd")
    same((answer["backend"], answer["notEnforced"]), ("namespaces", []))
    uid = run("id", "-u", "moltis").ok().strip()
    slices = f"/sys/fs/cgroup/user.slice/user-{uid}.slice/user@{uid}.service/app.slice"
    scopes = [name for name in os.listdir(slices) if name.startswith("moltis-") and name.endswith(".scope")]
    same(len(scopes), 1)
    with open(f"{slices}/{scopes[0]}/memory.max", encoding="utf-8") as file:
        assert int(file.read()) <= 2 << 30
    bomb = "dd if=/dev/zero of=/dev/null bs=200M count=1; echo ended $?"
    limited = {"settings": {"limits": {"memory": 96 << 20}}}
    same(executed("small", bomb, **limited)["stdout"], "ended 137\n")
    restarted_around("kept", started("kept"))


@long
def with_its_drop_in_podman_is_used_and_a_restart_keeps_its_containers():
    emptied()
    for number in (0, 1):
        block(PAGE, "systemd with Podman", number, of=3).ok()
        if number == 0:
            ready()
            podmans = {"HOME": "/var/lib/moltis-podman", "XDG_RUNTIME_DIR": "/run/moltis"}
            around = ["sudo", "-u", "moltis", "env", *(f"{name}={value}" for name, value in podmans.items())]
            imported(*around)
            AROUND.update(podmans)
            found = {backend["backend"]: backend for backend in told("GET", "/api/v1/backends")["backends"]}
            assert found["podman"]["usable"], found["podman"]
        ready()
        session = f"podman{number}"
        image = {"settings": {"backend": "podman", "image": IMAGE}}
        answer = executed(session, "id -u; hostname", **image)
        same((answer["backend"], answer["stdout"]), ("podman", "1000\nsandbox\n"))
        restarted_around(session, started(session))
        emptied()
    said = block(PAGE, "systemd with Podman", 2, of=3).ok()
    assert IMAGE not in said, said
    # What Podman keeps of its namespaces has outlived three services by now.
    imported(*around)


@check
def a_stop_leaves_what_runs_and_removing_that_leaves_nothing():
    started("last")
    run("systemctl", "stop", "moltis").ok()
    same((show("ActiveState"), show("Result")), ("inactive", "success"))
    assert guests(), "the sandboxes have ended with it"
    emptied()
    until("no sandbox is left", lambda: not guests())
    same(run("sh", "-c", "grep -c /var/lib/moltis /proc/self/mountinfo").out, "0\n")
    until("its group is gone", lambda: not os.path.exists(GROUP) or not run("find", GROUP, "-mindepth", "1", "-type", "d").out)
    same(run("ss", "-Hltn", "sport = :13131").out, "")


if __name__ == "__main__":
    main()
