// The page: one question at a time, its answer below it. Everything computed comes from the simulator in the worker.
import * as breakdown from "../components/step_breakdown.js";
import * as cards from "../components/cards.js";
import * as memory from "../components/memory_bars.js";
import * as scatter from "../components/scatter.js";
import * as timeline from "../components/timeline.js";
import * as comparison from "./comparison.js";
import { argumentsOf, commandLine, modelFile, prepare } from "./form.js";
import { number, seconds } from "../components/format.js";
import { layout, schedule } from "./figures.js";
import * as plansTable from "./plans_table.js";
import { Simulator } from "./simulator.js";
import * as takeAway from "./take_away.js";

const at = (id) => document.getElementById(id);
const simulator = new Simulator();

// The answer that is shown, what was asked, and which of its plans are A and B.
let shown = null;

function say(text) {
  at("state").textContent = text;
}

function fail(text) {
  at("errors").textContent = text;
  at("errors").hidden = text === "";
}

function showProgress(progress) {
  const bar = at("progress");
  bar.hidden = false;
  if (progress.all > 0) bar.value = progress.done / progress.all;
  if (progress.all === 0) return say("Listing the plans …");
  const best = progress.best === null ? "no plan yet" : `best so far ${seconds(progress.best)}`;
  say(`${progress.done.toLocaleString("en")} of ${progress.all.toLocaleString("en")} plans looked at, ${best}, ` +
    `${number(progress.seconds)} s`);
}

function busy(isBusy) {
  at("plan").disabled = isBusy;
  at("stop").disabled = !isBusy;
  at("side").setAttribute("aria-busy", isBusy);
  if (!isBusy) at("progress").hidden = true;
}

const scenarioOf = (name, index) => ({ name, toml: shown.answer.plan_files[index] });
const files = () => (shown.file ? [shown.file] : []);

// Plan A from close by.
async function showPlan(index) {
  const row = shown.answer.document.plans[index];
  at("plan-a-title").textContent = `Plan A is plan ${row.rank}: ${layout(row)}, ${schedule(row)}`;
  const of = shown;
  const answer = await simulator.ask({ ask: "simulate", ...scenarioOf("plan.toml", index), explain: true, timeline: "timeline.json" },
    { files: files() });
  if (of !== shown || shown.chosen.a !== index) return; // another question, or another plan, came meanwhile
  if (!answer.document) return fail(answer.said);
  const prediction = answer.document;
  shown.prediction = prediction;
  memory.render(at("memory"), prediction);
  breakdown.render(at("breakdown"), prediction);
  const columns = answer.files["timeline.json"];
  if (columns) timeline.render(at("timeline"), JSON.parse(columns), { capacity_gib: prediction.available_memory_gib });
  at("report").textContent = answer.text;
  takeAway.render(at("take"), { command: commandLine(shown.given), scenario: shown.answer.plan_files[index].replaceAll("\"/work/", "\""),
    answer: shown.answer.document, modelFile: shown.file?.name });
  at("plan-a").dataset.shown = index;
}

async function showComparison() {
  const { a, b } = shown.chosen;
  const plans = shown.answer.document.plans;
  at("ab").hidden = plans.length < 2;
  if (plans.length < 2) return;
  const of = shown;
  comparison.render(at("ab-answer"), { a: plans[a], b: plans[b], document: null });
  const answer = await simulator.ask({ ask: "compare", scenarios: [scenarioOf("A", a), scenarioOf("B", b)] }, { files: files() });
  if (of !== shown || shown.chosen.a !== a || shown.chosen.b !== b) return;
  comparison.render(at("ab-answer"), { a: plans[a], b: plans[b], document: answer.document });
  at("ab").dataset.shown = `${a} ${b}`;
}

function choose(name, index) {
  shown.chosen[name] = index;
  if (name === "a") showPlan(index);
  showComparison();
}

// As by its button in the table.
function pick(name, index) {
  document.querySelector(`input[name="pick-${name}"][value="${index}"]`).checked = true;
  choose(name, index);
}

function showAnswer() {
  const { document: answer, text } = shown.answer;
  const plans = answer.plans;
  at("answer").hidden = false;
  at("headline").textContent = `${answer.model}, ${answer.global_batch.toLocaleString("en")} samples a step`;
  cards.render(at("cards"), answer, { kind: "plans" });
  plansTable.render(at("plans"), plans, { chosen: shown.chosen, choose });
  at("account").textContent = plansTable.account_of(answer.search);
  at("search-text").textContent = text;
  scatter.render(at("scatter"), answer, { choose: (row) => pick("a", plans.indexOf(row)) });
  showPlan(shown.chosen.a);
  showComparison();
}

async function plan() {
  const given = argumentsOf();
  const file = modelFile();
  fail("");
  busy(true);
  say("Searching …");
  simulator.reset();
  const answer = await simulator.ask({ ask: "plan", arguments: given }, { files: file ? [file] : [], progress: showProgress });
  busy(false);
  if (answer.outcome === "stopped") return say("Stopped before a plan was found.");
  if (answer.outcome !== "good" || !answer.document?.plans) {
    say(answer.outcome === "no_plan" ? "No plan fits." : "This cannot be planned.");
    at("answer").hidden = true;
    return fail([answer.said, answer.text].filter(Boolean).join("\n"));
  }
  shown = { given, file, answer, chosen: { a: 0, b: Math.min(1, answer.document.plans.length - 1) } };
  say(`${answer.document.plans.length} plans found${answer.is_stopped ? ", stopped before the end of the search" : ""}.`);
  showAnswer();
  at("answer").focus();
}

at("question").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!at("plan").disabled) plan();
});
at("stop").addEventListener("click", () => { say("Stopping …"); simulator.stop(); });

async function begin() {
  await simulator.start();
  const known = await simulator.ask({ ask: "known" });
  prepare(known);
  at("version").textContent = `smsim ${known.version} (${known.commit})`;
  at("plan").disabled = false;
  say("Ready. Nothing was asked yet.");
}

begin().catch((error) => {
  fail(`${error.message}\nThis page needs WebAssembly with exceptions: Chromium 95, Firefox 100, Safari 15.2 or later.`);
  say("The simulator could not be loaded.");
});
