// The worker's side: holds one instance of the simulator and answers one question at a time.
// The script of Emscripten, which defines smsimModule, stands before this one.

let simulator = null;
let asked = null; // the number of the question that is being answered
let stopFlag = null; // shared memory, where the page may have some: other than 0 asks for the best so far

async function start(wasm) {
  const options = {
    instantiateWasm(imports, done) {
      const begun = wasm instanceof WebAssembly.Module
        ? WebAssembly.instantiate(wasm, imports).then((instance) => ({ instance, module: wasm }))
        : WebAssembly.instantiate(wasm, imports);
      begun.then(({ instance, module }) => {
        done(instance, module);
        self.postMessage({ module });
      }, (error) => self.postMessage({ failure: String(error) }));
      return {};
    },
    onProgress(progress) {
      self.postMessage({ id: asked, progress });
    },
    isStopped: () => stopFlag !== null && Atomics.load(stopFlag, 0) !== 0,
    print() {},
    printErr() {},
  };
  simulator = await self.smsimModule(options);
  simulator.FS.mkdir("/work");
  simulator.FS.chdir("/work");
  self.postMessage({ ready: true });
}

function answer(question) {
  const text = JSON.stringify(question);
  const bytes = simulator.lengthBytesUTF8(text) + 1;
  const at = simulator._malloc(bytes);
  simulator.stringToUTF8(text, at, bytes);
  try {
    return JSON.parse(simulator.UTF8ToString(simulator._smsim_answer(at)));
  } finally {
    simulator._free(at);
  }
}

self.onmessage = ({ data }) => {
  if (data.wasm) {
    stopFlag = data.stopFlag ? new Int32Array(data.stopFlag) : null;
    start(data.wasm).catch((error) => self.postMessage({ failure: String(error) }));
    return;
  }
  asked = data.id;
  try {
    for (const file of data.files ?? []) simulator.FS.writeFile(`/work/${file.name}`, file.bytes);
    self.postMessage({ id: data.id, answer: answer(data.question) });
  } catch (error) {
    // Memory is the one thing of which a page has less than the tools.
    self.postMessage({ id: data.id, answer: { outcome: "failure", said: `the simulator ended: ${error}` }, isBroken: true });
  }
};
