"""A task as a model would do it: write a program, run it, find the fault, mend it, run it again.

task.py stdio PROGRAM ARGUMENT...
task.py http URL          (the key in MOLTIS_KEY)
"""

import asyncio
import os
import sys

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

# Its mean forgets that a list may be empty, and its median that it must be sorted.
PROGRAM = """\
import sys


def mean(numbers):
    return sum(numbers) / len(numbers)


def median(numbers):
    middle = len(numbers) // 2
    return numbers[middle]


numbers = [int(word) for word in sys.stdin.read().split()]
print("mean", mean(numbers))
print("median", median(numbers))
"""

TOOLS = [
    "edit_file", "exec", "glob", "grep", "list_directory", "process_input", "process_output", "process_start",
    "process_stop", "read_file", "sandbox_info", "write_file",
]  # fmt: skip


def same(what, found, wanted):
    if found != wanted:
        sys.exit(f"{what}: {found!r}, and not {wanted!r}")
    print("ok", what)


async def work(client):
    same("tools", sorted(tool.name for tool in (await client.list_tools()).tools), TOOLS)
    told = []

    async def progress(at, total, message):
        told.append(message)

    async def call(name, **arguments):
        answer = await client.call_tool(name, arguments, progress_callback=progress)
        return answer.is_error, answer.structured_content, "".join(c.text for c in answer.content if c.type == "text")

    async def run(numbers):
        failed, ran, _ = await call("exec", command="python3 stats/main.py", stdin=numbers)
        same("exec is answered", bool(failed), False)
        return ran["exitCode"], ran["stdout"], ran["stderr"]

    failed, info, _ = await call("sandbox_info")
    same("sandbox_info", (bool(failed), info["backend"]), (False, "namespaces"))
    failed, wrote, _ = await call("write_file", path="stats/main.py", content=PROGRAM)
    same("write_file", (bool(failed), wrote["bytes"], wrote["created"]), (False, len(PROGRAM), True))

    # The fault shows itself as a wrong answer ...
    same("a wrong median", await run("9 1 5"), (0, "mean 5.0\nmedian 1\n", ""))
    # ... and as a traceback, by which it is found.
    code, out, err = await run("")
    same("a traceback", (code, out, err.splitlines()[-1]), (1, "", "ZeroDivisionError: division by zero"))
    failed, found, _ = await call("grep", pattern=r"len\(numbers\)", path="stats")
    lines = [(match["path"], match["line"]) for match in found["matches"]]
    same("grep", (bool(failed), lines), (False, [("main.py", 5), ("main.py", 9)]))
    failed, read, _ = await call("read_file", path="stats/main.py", offset=4, limit=2)
    same("read_file", (bool(failed), read["content"]), (False, "\n".join(PROGRAM.splitlines()[3:5]) + "\n"))

    # An edit that names what is there twice is refused, and changes nothing.
    failed, _, text = await call("edit_file", path="stats/main.py", old_string="len(numbers)", new_string="1")
    same("an edit of two places", (failed, "error[" in text), (True, True))
    for old, new in [
        ("sum(numbers) / len(numbers)", "sum(numbers) / max(len(numbers), 1)"),
        ("    return numbers[middle]", "    return sorted(numbers)[middle] if numbers else 0"),
    ]:
        failed, edited, _ = await call("edit_file", path="stats/main.py", old_string=old, new_string=new)
        same("edit_file", (bool(failed), edited["replacements"]), (False, 1))
    same("the right median", await run("9 1 5"), (0, "mean 5.0\nmedian 5\n", ""))
    same("nothing to count", await run(""), (0, "mean 0.0\nmedian 0\n", ""))

    failed, ran, _ = await call("exec", command="echo one; sleep 2; echo two")
    same("a slow command", (bool(failed), ran["stdout"]), (False, "one\ntwo\n"))
    same("its progress was told", bool(told), True)


async def main():
    kind, *rest = sys.argv[1:]
    if kind == "stdio":
        parameters = StdioServerParameters(command=rest[0], args=rest[1:], env=dict(os.environ))
        async with Client(parameters, read_timeout_seconds=60) as client:
            await work(client)
    else:
        headers = {"Authorization": f"Bearer {os.environ['MOLTIS_KEY']}"}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            async with Client(streamable_http_client(rest[0], http_client=http), read_timeout_seconds=60) as client:
                await work(client)


asyncio.run(main())
