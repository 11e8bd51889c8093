// Vercel's own client at the stand-in: `node vercel.mjs PLACE`, where PLACE is what the stand-ins print. Says `ok` at the end.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

// The package lies beside the clients, and not beside this file.
const { Sandbox } = createRequire(`${process.cwd()}/`)("@vercel/sandbox");
const { url, token, team, project } = JSON.parse(process.argv[2]).vercel;

/** Only the address is another one. */
const at = (own) => (asked, options) => {
  const address = typeof asked === "string" ? asked : asked.url ?? String(asked);
  assert(address.startsWith("https://vercel.com/api/"), address);
  return fetch(address.replace("https://vercel.com/api", own), options);
};
const account = { token, teamId: team, projectId: project, fetch: at(url) };

await assert.rejects(Sandbox.get({ ...account, token: "another", name: "x" }), /403/);
await assert.rejects(Sandbox.get({ ...account, name: "there-is-none" }), /404/);

const name = `sdk-${process.pid}`;
const sandbox = await Sandbox.create({
  ...account,
  name,
  runtime: "node24",
  persistent: false,
  timeout: 300_000,
  resources: { vcpus: 2 },
  networkPolicy: "deny-all",
  tags: { from: "sdk" },
});
try {
  assert.equal(sandbox.name, name);
  assert.equal(sandbox.status, "running");
  assert.equal((await Sandbox.get({ ...account, name })).name, name);

  const waited = await sandbox.runCommand({ cmd: "sh", args: ["-c", "echo out; echo err >&2; echo $A; exit 3"], env: { A: "1" } });
  assert.deepEqual([waited.exitCode, await waited.stdout(), await waited.stderr()], [3, "out\n1\n", "err\n"]);

  const detached = await sandbox.runCommand({ cmd: "sh", args: ["-c", "echo a; sleep 0.4; echo b >&2; exit 5"], detached: true });
  const lines = [];
  for await (const line of detached.logs()) lines.push([line.stream, line.data]);
  assert.deepEqual(lines, [["stdout", "a\n"], ["stderr", "b\n"]]);
  assert.equal((await detached.wait()).exitCode, 5);

  const long = await sandbox.runCommand({ cmd: "sleep", args: ["60"], detached: true });
  await long.kill("SIGTERM");
  assert.notEqual((await long.wait()).exitCode, 0);

  await sandbox.mkDir("d1");
  await assert.rejects(sandbox.mkDir("d1"), /400/);
  const bytes = Buffer.from([0, 255, 10, 13]);
  await sandbox.writeFiles([
    { path: "d1/a.txt", content: Buffer.from("one\n") },
    { path: "d1/é.bin", content: bytes },
    { path: "/tmp/x.sh", content: Buffer.from("#!/bin/sh\necho run\n"), mode: 0o755 },
  ]);
  assert.equal(String(await sandbox.readFileToBuffer({ path: "d1/a.txt" })), "one\n");
  assert.deepEqual(await sandbox.readFileToBuffer({ path: "d1/é.bin" }), bytes);
  assert.equal(await sandbox.readFileToBuffer({ path: "nothing" }), null);
  assert.equal(await (await sandbox.runCommand("/tmp/x.sh")).stdout(), "run\n");

  await sandbox.extendTimeout(60_000);
  await sandbox.updateNetworkPolicy("allow-all");
  await sandbox.updateNetworkPolicy({ allow: ["example.com", "*.example.org"] });
  await sandbox.updateNetworkPolicy("deny-all");
} finally {
  await sandbox.stop();
  await sandbox.delete();
}
await assert.rejects(Sandbox.get({ ...account, name }), /404/);
console.log("ok");
