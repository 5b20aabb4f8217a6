// A WebSocket echo server, and a client that talks to it through a proxy. Usage: ws.mjs LIBRARY server | ws.mjs LIBRARY PORT
import { createRequire } from "node:module";
import { once } from "node:events";

const [library, role] = process.argv.slice(2);
const { WebSocket, WebSocketServer } = createRequire(library)(library);

if (role === "server") {
  const server = new WebSocketServer({ host: "127.0.0.1", port: 0, perMessageDeflate: true });
  server.on("connection", (socket, request) => {
    socket.on("message", (data, isBinary) => socket.send(data, { binary: isBinary }));
    socket.send(`hello ${request.url} ${request.headers["x-forwarded-for"]}`);
  });
  await once(server, "listening");
  console.log(server.address().port);
} else {
  const socket = new WebSocket(`ws://127.0.0.1:${role}/chat?room=1`, ["a", "b"]);
  const waiting = [];
  const arrived = [];
  socket.on("message", (data, isBinary) => {
    const message = isBinary ? data : data.toString();
    const next = waiting.shift();
    if (next) next(message); else arrived.push(message);
  });
  const message = () => arrived.length > 0 ? arrived.shift() : new Promise((resolve) => waiting.push(resolve));
  await once(socket, "open");
  const said = { hello: await message(), compressed: socket.extensions };
  socket.send("text");
  said.text = await message();
  const large = Buffer.alloc(1 << 20, "x");
  socket.send(large);
  said.large = (await message()).equals(large);
  for (let count = 0; count < 100; count++) socket.send(`message ${count}`);
  said.order = true;
  for (let count = 0; count < 100; count++) said.order &&= (await message()) === `message ${count}`;
  socket.ping("are you there?");
  const [pong] = await once(socket, "pong");
  said.pong = pong.toString();
  socket.close(4001, "enough");
  const [code, reason] = await once(socket, "close");
  said.close = [code, reason.toString()];
  console.log(JSON.stringify(said));
}
