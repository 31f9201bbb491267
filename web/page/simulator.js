// The page's side of the worker: questions in, promises of answers out. Nothing else knows of messages.
import glue from "smsim-glue";
import work from "smsim-worker";

// Over http the module is a file of its own; a page that was opened as a file may not read files, but may run scripts,
// and one of them holds the module as text.
async function loadModule() {
  if (location.protocol !== "file:") {
    const reply = await fetch("smsim.wasm");
    if (reply.ok) return reply.arrayBuffer();
  }
  await new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "smsim.wasm.js";
    script.onload = resolve;
    script.onerror = () => reject(new Error("smsim.wasm.js does not lie beside the page"));
    document.head.append(script);
  });
  const text = atob(window.smsimWasm);
  delete window.smsimWasm;
  return Uint8Array.from(text, (letter) => letter.charCodeAt(0)).buffer;
}

export class Simulator {
  #worker = null;
  #module = null; // bytes at first, compiled later
  #waiting = new Map(); // by number: resolve and progress
  #number = 0;
  #flag = null;

  async start() {
    this.#module ??= await loadModule();
    const script = URL.createObjectURL(new Blob([glue, "\n", work], { type: "text/javascript" }));
    this.#worker = new Worker(script);
    this.#flag = window.crossOriginIsolated ? new SharedArrayBuffer(4) : null;
    await new Promise((resolve, reject) => {
      this.#worker.onmessage = ({ data }) => {
        if (data.module) this.#module = data.module;
        else if (data.ready) resolve();
        else if (data.failure) reject(new Error(data.failure));
        else this.#receive(data);
      };
      this.#worker.onerror = (event) => reject(new Error(event.message));
      this.#worker.postMessage({ wasm: this.#module, stopFlag: this.#flag });
    });
    URL.revokeObjectURL(script);
  }

  #receive({ id, answer, progress, isBroken }) {
    const waiting = this.#waiting.get(id);
    if (progress) waiting?.progress?.(progress);
    if (!answer) return;
    this.#waiting.delete(id);
    if (isBroken) this.#renew();
    waiting?.resolve(answer);
  }

  async #renew() {
    this.#worker?.terminate();
    await this.start();
  }

  // The answer to {ask: ...}; `files` {name, bytes} lie in the working folder, `progress` is called while it works.
  ask(question, { files = [], progress } = {}) {
    const id = ++this.#number;
    return new Promise((resolve) => {
      this.#waiting.set(id, { resolve, progress });
      this.#worker.postMessage({ id, question, files });
    });
  }

  // Ends what is under way. Where the page shares memory with its worker, a search answers with its best so far;
  // elsewhere it is given up.
  async stop() {
    if (this.#flag) {
      Atomics.store(new Int32Array(this.#flag), 0, 1);
      return;
    }
    const given = [...this.#waiting.values()];
    this.#waiting.clear();
    await this.#renew();
    for (const waiting of given) waiting.resolve({ outcome: "stopped", said: "stopped" });
  }

  // Before a new question: a stop was of the one before.
  reset() {
    if (this.#flag) Atomics.store(new Int32Array(this.#flag), 0, 0);
  }
}
