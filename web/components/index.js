// Charts of the tools' answers, plain modules over D3. Each has render(root, data, options): `data` is the JSON document that a tool
// answers with (docs/formats.md), `root` an element whose content it replaces; calling it again draws anew.
export * as cards from "./cards.js";
export * as gantt from "./gantt.js";
export * as memory_bars from "./memory_bars.js";
export * as scatter from "./scatter.js";
export * as step_breakdown from "./step_breakdown.js";
export * as table from "./table.js";
export * as timeline from "./timeline.js";
export * as format from "./format.js";
