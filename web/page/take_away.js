// What leaves the page with its user: the scenario file of plan A and the commands that give the same figures.
import { element } from "./figures.js";

function save(name, content, type) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  const link = element("a", { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

// On pages opened as files the clipboard may be closed: then the text is marked, for the keys that copy.
async function copy(text, shown, said) {
  try {
    await navigator.clipboard.writeText(text);
    said.textContent = "copied";
  } catch {
    getSelection().selectAllChildren(shown);
    said.textContent = "marked: copy it with the keyboard";
  }
}

function block(title, id, text, extra = []) {
  const shown = element("pre", { id, tabindex: 0, "aria-label": title }, text);
  const said = element("span", { role: "status", class: "note" });
  return element("section", {}, element("h3", {}, title), shown,
    element("p", { class: "buttons" },
      element("button", { type: "button", class: "plain", onclick: () => copy(text, shown, said) }, "Copy"), ...extra, said));
}

export function render(root, { command, scenario, answer, modelFile }) {
  const lines = [`${command} --out plan.toml`, "smsim plan.toml --explain"];
  const needs = modelFile ? element("p", { class: "note" }, `Both read ${modelFile} in the current folder.`) : null;
  const download = (title, name, content, type) =>
    element("button", { type: "button", class: "plain", onclick: () => save(name, content, type) }, title);
  root.replaceChildren(
    block("Commands that ask the same", "command", lines.join("\n")), ...(needs ? [needs] : []),
    block("Scenario of plan A", "scenario", scenario, [download("Save plan.toml", "plan.toml", scenario, "application/toml")]),
    element("p", { class: "buttons" },
      download("Save the answer as JSON", "plans.json", JSON.stringify(answer, null, 2) + "\n", "application/json")));
}
