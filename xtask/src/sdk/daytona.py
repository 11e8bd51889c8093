"""Daytona's client for Python at the stand-in: `daytona.py PLACE`, where PLACE is what the stand-ins print. Says `ok` at the end."""

import asyncio
import json
import sys

# This file must not be taken for the package of the same name.
sys.path = [place for place in sys.path if place and place != sys.path[0]]

from daytona import CreateSandboxFromSnapshotParams, Daytona, DaytonaConfig, DaytonaError, SessionExecuteRequest  # noqa: E402

place = json.loads(sys.argv[1])["daytona"]


def client(key):
    return Daytona(DaytonaConfig(api_key=key, api_url=place["url"], target="us"))


def fails(what, *arguments):
    try:
        what(*arguments)
    except DaytonaError:
        return
    raise AssertionError(f"{what} does not fail")


def same(found, wanted):
    assert found == wanted, f"{found!r}, not {wanted!r}"


fails(client("another").get, "x")
daytona = client(place["key"])
fails(daytona.get, "there-is-none")
sandbox = daytona.create(CreateSandboxFromSnapshotParams(labels={"from": "sdk"}, env_vars={}, network_block_all=True))
try:
    same(sandbox.state, "started")
    same(daytona.get(sandbox.id).id, sandbox.id)
    home = sandbox.get_user_home_dir()
    same(sandbox.get_work_dir(), home)
    run, fs = sandbox.process, sandbox.fs

    ran = run.exec("echo out; echo $A; exit 3", cwd=home, env={"A": "1"}, timeout=10)
    same((ran.exit_code, ran.result), (3, "out\n1\n"))
    fails(lambda: run.exec("sleep 20", timeout=1))

    run.create_session("s1")
    waited = run.execute_session_command("s1", SessionExecuteRequest(command="echo out; echo err >&2; false"))
    same((waited.exit_code, waited.stdout, waited.stderr), (1, "out\n", "err\n"))
    begun = run.execute_session_command("s1", SessionExecuteRequest(command="echo a; sleep 0.4; exit 5", run_async=True))
    said = []
    asyncio.run(run.get_session_command_logs_async("s1", begun.cmd_id, said.append, said.append))
    same("".join(said), "a\n")
    same(run.get_session_command("s1", begun.cmd_id).exit_code, 5)
    same(run.get_session_command_logs("s1", begun.cmd_id).stdout, "a\n")
    run.delete_session("s1")

    fs.create_folder("d1", "755")
    fs.upload_file(b"one\n", f"{home}/d1/a.txt")
    same(fs.download_file(f"{home}/d1/a.txt"), b"one\n")
    fails(fs.download_file, "d1/nothing")
    same([entry.name for entry in fs.list_files("d1")], ["a.txt"])
    same(fs.get_file_info("d1/a.txt").size, 4)
    fs.move_files("d1/a.txt", "d1/b")
    fs.delete_file("d1/b")

    sandbox.update_network_settings(network_block_all=False)
    sandbox.update_network_settings(network_block_all=True)
    sandbox.stop()
    fails(run.exec, "true")
    sandbox.start()
    same(run.exec("echo again").result, "again\n")
finally:
    daytona.delete(sandbox)
print("ok")
