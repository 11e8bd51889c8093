// Daytona's client for TypeScript at the stand-in: `node daytona.mjs PLACE`, where PLACE is what the stand-ins print. Says `ok`
// at the end.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

// The package lies beside the clients, and not beside this file.
const { Daytona } = createRequire(`${process.cwd()}/`)("@daytonaio/sdk");
const { url, key } = JSON.parse(process.argv[2]).daytona;
// Changes of state are asked for: there is no socket for them here.
const account = { apiUrl: url, apiKey: key, target: "us", useDeprecatedPolling: true };

await assert.rejects(new Daytona({ ...account, apiKey: "another" }).get("x"), (error) => error.statusCode === 401);
const daytona = new Daytona(account);
await assert.rejects(daytona.get("there-is-none"), (error) => error.statusCode === 404);

const sandbox = await daytona.create({ language: "python", envVars: {}, labels: { from: "sdk" }, networkBlockAll: true });
try {
  assert.equal(sandbox.state, "started");
  assert.equal((await daytona.get(sandbox.id)).id, sandbox.id);
  const home = await sandbox.getUserHomeDir();
  assert.equal(await sandbox.getWorkDir(), home);

  const { process: run, fs } = sandbox;
  const ran = await run.executeCommand("echo out; echo $A; pwd; exit 3", home, { A: "1" }, 10);
  assert.deepEqual([ran.exitCode, ran.result], [3, `out\n1\n${home}\n`]);
  await assert.rejects(run.executeCommand("sleep 20", undefined, undefined, 1), (error) => error.statusCode === 408);

  await run.createSession("s1");
  await assert.rejects(run.createSession("s1"), (error) => error.statusCode === 409);
  const waited = await run.executeSessionCommand("s1", { command: "echo out; echo err >&2; false" });
  assert.deepEqual([waited.exitCode, waited.stdout, waited.stderr], [1, "out\n", "err\n"]);
  const begun = await run.executeSessionCommand("s1", { command: "echo a; sleep 0.4; echo b >&2; exit 5", runAsync: true });
  const said = { out: "", err: "" };
  await run.getSessionCommandLogs("s1", begun.cmdId, (text) => (said.out += text), (text) => (said.err += text));
  assert.deepEqual(said, { out: "a\n", err: "b\n" });
  const told = await run.getSessionCommandLogs("s1", begun.cmdId);
  assert.deepEqual([told.stdout, told.stderr], ["a\n", "b\n"]);
  assert.equal((await run.getSessionCommand("s1", begun.cmdId)).exitCode, 5);
  const input = await run.executeSessionCommand("s1", { command: "read line; echo got $line", runAsync: true });
  await run.sendSessionCommandInput("s1", input.cmdId, "x\n");
  let over;
  for (let tries = 0; tries < 300 && over === undefined; tries += 1) {
    over = (await run.getSessionCommand("s1", input.cmdId)).exitCode ?? undefined;
    if (over === undefined) await new Promise((wake) => setTimeout(wake, 100));
  }
  assert.equal((await run.getSessionCommandLogs("s1", input.cmdId)).stdout, "got x\n");
  await assert.rejects(run.sendSessionCommandInput("s1", input.cmdId, "x\n"), (error) => error.statusCode === 410);
  assert.equal((await run.listSessions()).length, 1);
  await run.deleteSession("s1");

  await fs.createFolder("d1", "755");
  const bytes = Buffer.from([0, 255, 10, 13]);
  await fs.uploadFile(Buffer.from("one\n"), `${home}/d1/a.txt`);
  await fs.uploadFiles([{ source: bytes, destination: "d1/é.bin" }, { source: Buffer.from("two\n"), destination: "d1/b" }]);
  assert.equal(String(await fs.downloadFile(`${home}/d1/a.txt`)), "one\n");
  assert.deepEqual(await fs.downloadFile("d1/é.bin"), bytes);
  await assert.rejects(fs.downloadFile("d1/nothing"));
  assert.deepEqual((await fs.listFiles("d1")).map(({ name }) => name).sort(), ["a.txt", "b", "é.bin"]);
  assert.equal((await fs.getFileDetails("d1/a.txt")).size, 4);
  await fs.setFilePermissions("d1/a.txt", { mode: "755" });
  assert.equal((await run.executeCommand("test -x d1/a.txt && echo yes")).result, "yes\n");
  await fs.moveFiles("d1/b", "d1/c");
  await fs.deleteFile("d1/c");
  await assert.rejects(fs.deleteFile("d1/c"), (error) => error.statusCode === 404);

  await sandbox.updateNetworkSettings({ networkBlockAll: false });
  await sandbox.updateNetworkSettings({ networkBlockAll: true });
  assert.equal(sandbox.networkBlockAll, true);
  await sandbox.refreshActivity();

  await sandbox.stop();
  assert.equal(sandbox.state, "stopped");
  await assert.rejects(run.executeCommand("true"), (error) => error.statusCode === 400);
  await assert.rejects(sandbox.stop(), (error) => error.statusCode === 400);
  await sandbox.start();
  assert.equal((await run.executeCommand("cat d1/a.txt")).result, "one\n");
} finally {
  await sandbox.delete(60, true);
}
await assert.rejects(daytona.get(sandbox.id), (error) => error.statusCode === 404);
console.log("ok");
process.exit(0);
