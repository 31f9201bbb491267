// What is asked: the form's fields as the arguments of smplan, and as a command line that asks the same.

const field = (name) => document.getElementById(name);

let chosen = null; // {name, bytes} of the file that takes the place of a catalogue name

export const modelFile = () => chosen;

// Words of a command line: blanks part, quotes hold together.
export function words(text) {
  const found = [];
  for (const [, double, single, bare] of text.matchAll(/"([^"]*)"|'([^']*)'|(\S+)/g)) found.push(double ?? single ?? bare);
  return found;
}

export function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

// The arguments of smplan.
export function argumentsOf() {
  const given = ["--target", field("instance").value];
  const add = (option, value) => { if (value !== "") given.push(option, value); };
  add(field("nodes-kind").value, field("nodes").value);
  add("--model", chosen ? chosen.name : field("model").value.trim());
  add("--seq-len", field("sequence").value);
  add("--global-batch", field("batch").value);
  if (field("objective").value !== "speed") add("--objective", field("objective").value);
  add("--for", field("runner").value);
  return given.concat(words(field("further").value));
}

export const commandLine = (given) => ["smplan", ...given].map(quoted).join(" ");

// What the page reads and what it cannot: an ONNX graph wants libonnx, which is not in the page.
async function take(file) {
  const note = field("file-note");
  const name = file.name.replace(/[^\w.-]/g, "_");
  if (name.toLowerCase().endsWith(".onnx")) {
    note.textContent = `${file.name} is an ONNX graph. This page holds no reader of ONNX; the command line does: ` +
      `smplan --model ${quoted(file.name)} --target ${field("instance").value} --nodes ${field("nodes").value || 1}. ` +
      "A config.json of Hugging Face is read here.";
    note.classList.add("refused");
    return;
  }
  chosen = { name, bytes: new Uint8Array(await file.arrayBuffer()) };
  note.classList.remove("refused");
  note.textContent = `${file.name} (${chosen.bytes.length.toLocaleString("en")} bytes) is the model.`;
  field("model").disabled = true;
  field("file-remove").hidden = false;
}

function leaveOut() {
  chosen = null;
  field("model").disabled = false;
  field("model-file").value = "";
  field("file-remove").hidden = true;
  field("file-note").textContent = "The catalogue's name is the model.";
  field("model-file").focus();
}

const memory = (instance) => `${instance.devices} × ${instance.device}, ${instance.memory_gib} GiB each`;

function showInstance(instances) {
  const instance = instances.find((one) => one.name === field("instance").value);
  const price = instance.usd_per_hour ? `${instance.usd_per_hour.toFixed(2)} USD an hour` : "no price known";
  field("instance-note").textContent = `${memory(instance)}; ${instance.network_gbps} Gbps of network; ${price}`;
}

// Fills the choices with what the simulator knows, and follows the fields that need more than their value.
export function prepare({ models, document: hardware }) {
  field("models").replaceChildren(...models.map((name) => new Option(name, name)));
  const instances = hardware.instances;
  field("instance").replaceChildren(...instances.map((one) => new Option(one.name, one.name)));
  if (instances.some((one) => one.name === "p4d.24xlarge")) field("instance").value = "p4d.24xlarge";
  field("instance").addEventListener("change", () => showInstance(instances));
  showInstance(instances);
  field("model-file").addEventListener("change", ({ target }) => { if (target.files.length > 0) take(target.files[0]); });
  field("file-remove").addEventListener("click", leaveOut);
  const drop = field("drop");
  // Anywhere on the page: a file that misses the field would replace the page.
  document.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
  document.addEventListener("dragleave", () => drop.classList.remove("over"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    if (event.dataTransfer.files.length > 0) take(event.dataTransfer.files[0]);
  });
}
