// The timeline of a report (docs/formats.md, "Report pages") as arrays that are searched and drawn quickly.
const kind_names = [
  "forward",
  "recompute",
  "backward",
  "backward_input",
  "backward_weight",
  "tensor",
  "context",
  "expert",
  "data",
  "send",
  "receive",
  "copy",
  "optimizer",
];
export const kinds = kind_names;
const letters = { forward: "F", recompute: "R", backward: "B", backward_input: "I", backward_weight: "W" };

// "0*2,288279*41,17": what repeats is written once.
function expand(runs) {
  if (runs === "") return [];
  const numbers = [];
  for (const run of runs.split(",")) {
    const [number, times] = run.split("*").map(Number);
    for (let i = times ?? 1; i > 0; --i) numbers.push(number);
  }
  return numbers;
}

// A lane: starts, ends (ns), operation, micro_batch: one entry a slice, in order of time.
function decode_lane(lane, operations) {
  const [gap_ns, operation_steps, micro_batch_steps] = [lane.gap_ns, lane.operation, lane.micro_batch].map(expand);
  const count = gap_ns.length;
  const decoded = {
    name: lane.name,
    count,
    starts: new Float64Array(count),
    ends: new Float64Array(count),
    operation: new Int32Array(count),
    micro_batch: new Int32Array(count),
  };
  let time = 0;
  let micro_batch = 0;
  let operation = 0;
  for (let i = 0; i < count; ++i) {
    time += gap_ns[i];
    operation += operation_steps[i];
    micro_batch += micro_batch_steps[i];
    decoded.starts[i] = time;
    decoded.operation[i] = operation;
    time += operations.duration_ns[operation];
    decoded.ends[i] = time;
    decoded.micro_batch[i] = micro_batch;
  }
  return decoded;
}

function decode_memory(memory) {
  const [gap_ns, steps] = [memory.gap_ns, memory.kib].map(expand);
  const count = gap_ns.length;
  const decoded = { times: new Float64Array(count), gib: new Float64Array(count) };
  let time = 0;
  let kib = 0;
  for (let i = 0; i < count; ++i) {
    time += gap_ns[i];
    kib += steps[i];
    decoded.times[i] = time;
    decoded.gib[i] = kib / 1048576;
  }
  return decoded;
}

// First index whose value is greater than `value`.
export function after(values, value) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

export function decode(data) {
  // Collectives are over many kinds of groups: those of data parallelism have one colour.
  const number_of = data.kinds.map((name) => kind_names.indexOf(kind_names.includes(name) ? name : "data"));
  const operations = { ...data.operations, kind: data.operations.kind.map((kind) => number_of[kind]) };
  const ranks = data.ranks.map((rank) => ({
    ...rank,
    lanes: rank.lanes.map((lane) => decode_lane(lane, operations)),
    memory: decode_memory(rank.memory),
  }));
  return { ...data, operations, ranks };
}

export const kind_of = (timeline, operation) => kind_names[timeline.operations.kind[operation]];

// "3", or "3.1": segment 1 of the sequences of micro-batch 3.
export function micro_batch_text(timeline, micro_batch) {
  const passes = timeline.passes_per_micro_batch;
  if (micro_batch < 0) return "";
  return passes > 1 ? `${Math.floor(micro_batch / passes)}.${micro_batch % passes}` : String(micro_batch);
}

// "F3", or the name where no letter stands for it.
export function short_label(timeline, operation, micro_batch) {
  const kind = kind_of(timeline, operation);
  const number = micro_batch_text(timeline, micro_batch);
  return letters[kind] ? `${letters[kind]}${number}` : `${name_of(timeline, operation)} ${number}`.trim();
}

export const name_of = (timeline, operation) => timeline.names[timeline.operations.name[operation]];

// The model's operators that a slice runs: [first, end).
export function operators_of(timeline, operation) {
  const { first_operator, end_operator } = timeline.operations;
  return [first_operator[operation], end_operator[operation]];
}

// Which operations run an operator, or have a name, with this text: 1 for each that does; null where the text is empty.
export function matching(timeline, text) {
  const wanted = text.trim().toLowerCase();
  if (wanted === "") return null;
  const runs = timeline.operators.map((name) => name.toLowerCase().includes(wanted));
  const before = new Int32Array(runs.length + 1); // matches among the first i operators
  runs.forEach((does, i) => (before[i + 1] = before[i] + (does ? 1 : 0)));
  const names = timeline.names.map((name) => name.toLowerCase().includes(wanted));
  const count = timeline.operations.name.length;
  const found = new Uint8Array(count);
  for (let i = 0; i < count; ++i) {
    const [first, end] = operators_of(timeline, i);
    found[i] = names[timeline.operations.name[i]] || before[end] > before[first] ? 1 : 0;
  }
  return found;
}

// Every send with its receive: [{from: {rank, lane, slice}, to: {rank, lane, slice}}]. Both ends name the channel that they use.
export function flows(timeline) {
  const { channel } = timeline.operations;
  const open = new Map();
  const found = [];
  timeline.ranks.forEach((rank, r) =>
    rank.lanes.forEach((lane, l) => {
      const seen = new Map();
      for (let i = 0; i < lane.count; ++i) {
        const own = channel[lane.operation[i]];
        if (own < 0) continue;
        const message = `${rank.replica} ${own} ${lane.micro_batch[i]}`;
        const times = seen.get(message) ?? 0;
        seen.set(message, times + 1);
        const key = `${message} ${times}`;
        const end = { rank: r, lane: l, slice: i };
        const is_receive = kind_of(timeline, lane.operation[i]) === "receive";
        const other = open.get(key);
        if (other && other.is_receive !== is_receive) {
          found.push(is_receive ? { from: other.end, to: end } : { from: end, to: other.end });
          open.delete(key);
        } else open.set(key, { end, is_receive });
      }
    }),
  );
  return found;
}

// Busy seconds of a rank by kind; a receive waits, and counts as that.
export function times_by_kind(timeline, rank) {
  const times = {};
  for (const lane of rank.lanes)
    for (let i = 0; i < lane.count; ++i) {
      const kind = kind_of(timeline, lane.operation[i]);
      times[kind] = (times[kind] ?? 0) + (lane.ends[i] - lane.starts[i]) / 1e9;
    }
  return times;
}

// The windows that a timeline opens on: while the pipeline fills, in the middle of the steady state, while it drains; to one scale.
// One window, the whole step, where they would overlap.
export function opening_windows(timeline) {
  const end = timeline.makespan_ns;
  const { warm_up_ns, drain_ns } = timeline.parts ?? {};
  if (warm_up_ns == null || drain_ns == null || drain_ns <= warm_up_ns) return [{ name: "whole step", from: 0, to: end }];
  const length = 1.15 * Math.max(warm_up_ns, Math.min(end - drain_ns, 2 * warm_up_ns));
  if (3 * length >= end) return [{ name: "whole step", from: 0, to: end }];
  const middle = (warm_up_ns + drain_ns) / 2;
  return [
    { name: "warm-up", from: 0, to: length },
    { name: "steady state", from: middle - length / 2, to: middle + length / 2 },
    { name: "drain", from: end - length, to: end },
  ];
}
