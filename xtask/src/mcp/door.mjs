// Passes requests on to the gateway with a key, which the conformance suite has no way to send. A `Host` or `Origin` of
// its own becomes the gateway's; a foreign one stays as it is, so that it is the gateway that refuses it.
//
// node door.mjs URL   (the key in MOLTIS_KEY); prints its own address.
import http from "node:http";

const gateway = new URL(process.argv[2]);
const server = http.createServer((request, response) => {
  const own = new Set([`127.0.0.1:${server.address().port}`, `localhost:${server.address().port}`]);
  const headers = { ...request.headers, authorization: `Bearer ${process.env.MOLTIS_KEY}` };
  if (own.has(headers.host)) headers.host = gateway.host;
  if (own.has(headers.origin?.replace("http://", ""))) headers.origin = gateway.origin;
  const { hostname, port } = gateway;
  const on = http.request({ hostname, port, path: request.url, method: request.method, headers }, (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    answer.pipe(response);
  });
  on.on("error", () => response.destroy());
  response.on("close", () => on.destroy());
  request.pipe(on);
});
server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}`));
// It ends with whoever started it.
process.stdin.resume().on("end", () => process.exit(0));
