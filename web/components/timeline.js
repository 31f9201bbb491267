// What every rank does when, on a canvas: a step of a large plan has a hundred thousand slices, more than a browser keeps as elements.
// data: the `timeline` of a report (docs/formats.md). Slices narrower than a pixel are drawn as one, in the colour of what takes most
// of it. Opens on warm-up, steady state and drain; wheel and drag, or the keyboard, move.
// options.capacity_gib: drawn over memory; options.ranks: how many ranks are shown at first (8).
import { select } from "d3-selection";
import { range } from "d3-array";
import { color } from "d3-color";
import { on } from "./events.js";
import { clear, legend, on_end } from "./figure.js";
import { gib, number, seconds, words } from "./format.js";
import * as table from "./table.js";
import {
  after,
  decode,
  flows,
  kind_of,
  kinds,
  matching,
  micro_batch_text,
  name_of,
  opening_windows,
  operators_of,
  short_label,
  times_by_kind,
} from "./timeline_data.js";

const lane_height = 20;
const header_height = 20;
const memory_height = 40;
const axis_height = 20;
const pane_gap = 14;
const narrowest_box = 3; // pixels
const dim_alpha = 0.16;
const shortest_window_ns = 200;
// More arrows than this are a hatching that tells nothing.
const most_arrows = 160;

const css_name = (kind) => `--slice-${kind.replaceAll("_", "-")}`;

// At most `most` of them, the first and the last among them, evenly.
function spread(count, most) {
  if (count <= most) return range(count);
  return [...new Set(range(most).map((i) => Math.round((i * (count - 1)) / (most - 1))))];
}

// A row of pixels that narrow slices cover.
class Strip {
  constructor(width) {
    this.width = width;
    this.most = new Float32Array(width); // share of the pixel that `operation` covers
    this.all = new Float32Array(width); // that all cover
    this.operation = new Int32Array(width);
    this.is_dim = new Uint8Array(width);
    this.canvas = document.createElement("canvas");
    this.canvas.width = width;
    this.canvas.height = 1;
    this.pen = this.canvas.getContext("2d");
    this.image = this.pen.createImageData(width, 1);
    this.is_empty = true;
  }

  cover(from, to, operation, is_dim) {
    const last = Math.min(this.width - 1, Math.floor(to));
    for (let x = Math.max(0, Math.floor(from)); x <= last; ++x) {
      const share = Math.min(to, x + 1) - Math.max(from, x);
      this.all[x] += share;
      const weight = is_dim ? share * 1e-6 : share; // what is searched for stays visible
      if (weight > this.most[x]) {
        this.most[x] = weight;
        this.operation[x] = operation;
        this.is_dim[x] = is_dim ? 1 : 0;
      }
    }
    this.is_empty = false;
  }

  // Empty afterwards. colour_of(operation): [red, green, blue, greatest opacity]
  draw(pen, left, top, height, colour_of) {
    if (this.is_empty) return;
    const { data } = this.image;
    data.fill(0);
    for (let x = 0; x < this.width; ++x) {
      if (this.most[x] <= 0) continue;
      const [red, green, blue, opacity] = colour_of(this.operation[x]);
      const dense = this.is_dim[x] ? dim_alpha : Math.max(0.3, Math.min(1, this.all[x]));
      data[4 * x] = red;
      data[4 * x + 1] = green;
      data[4 * x + 2] = blue;
      data[4 * x + 3] = 255 * opacity * dense;
    }
    this.pen.putImageData(this.image, 0, 0);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(this.canvas, left, top, this.width, height);
    this.most.fill(0);
    this.all.fill(0);
    this.is_empty = true;
  }
}

class Timeline {
  constructor(root, data, options) {
    this.timeline = decode(data);
    this.options = options;
    this.shown = new Set(spread(this.timeline.ranks.length, options.ranks ?? 8));
    this.arrows = flows(this.timeline);
    this.arrow_of = new Map();
    for (const arrow of this.arrows)
      for (const end of [arrow.from, arrow.to]) this.arrow_of.set(`${end.rank} ${end.lane} ${end.slice}`, arrow);
    this.shows_arrows = this.arrows.length > 0;
    this.windows = opening_windows(this.timeline);
    this.selected = null;
    this.matches = null;
    this.build(root);
  }

  build(root) {
    clear(root);
    const box = select(root).append("figure").attr("class", "chart timeline");
    const caption = box.append("figcaption");
    caption.append("h3").text(this.options.title ?? "Timeline");
    caption
      .append("p")
      .text(
        "Drag to move, wheel with Ctrl or pinch to zoom; with the keyboard: arrows, + and −, 0 for the whole step, N and P for the next and previous slice.",
      );
    this.build_controls(box);
    this.build_ranks(box);
    const place = box.append("div").attr("class", "plot").node();
    const present = new Set(
      this.timeline.ranks.flatMap((rank) => rank.lanes.flatMap((lane) => [...new Set(lane.operation)])),
    );
    const used = kinds.filter((_, k) => [...present].some((o) => this.timeline.operations.kind[o] === k));
    legend(
      place,
      used.map((kind) => ({
        name: kind === "receive" ? "receive (waits)" : words(kind),
        colour: `var(${css_name(kind)})`,
        class: kind === "receive" ? "waiting" : "",
      })),
    );
    this.canvas = select(place)
      .append("canvas")
      .attr("class", "timeline-canvas")
      .attr("tabindex", 0)
      .attr("role", "application")
      .attr("aria-roledescription", "timeline")
      .attr("aria-label", `Timeline of ${this.timeline.ranks.length} ranks over ${this.time(this.timeline.makespan_ns)}`)
      .node();
    this.pen = this.canvas.getContext("2d");
    this.tip = select(place).append("div").attr("class", "tip").attr("hidden", "");
    this.said = box.append("p").attr("class", "timeline-said").attr("role", "status");
    this.build_table(box);
    this.listen();
    this.place = place;
    this.schedule();
  }

  build_controls(box) {
    const controls = box.append("div").attr("class", "timeline-controls");
    const end = this.timeline.makespan_ns;
    const opening = opening_windows(this.timeline);
    const jumps = [{ name: "Whole step", windows: [{ name: "whole step", from: 0, to: end }] }];
    const parts = this.timeline.parts ?? {};
    if (opening.length > 1) jumps.unshift({ name: "Overview", windows: opening });
    if (parts.warm_up_ns != null && parts.drain_ns != null) {
      const has_steady = parts.drain_ns > parts.warm_up_ns;
      const first_end = has_steady ? parts.warm_up_ns : parts.drain_ns;
      const last_start = has_steady ? parts.drain_ns : parts.warm_up_ns;
      jumps.push({ name: "Warm-up", windows: [{ name: "warm-up", from: 0, to: first_end }] });
      if (has_steady) {
        const length = Math.min(last_start - first_end, Math.max(first_end, (last_start - first_end) / 20));
        const middle = (first_end + last_start) / 2;
        const from = middle - length / 2;
        jumps.push({ name: "Steady state", windows: [{ name: "steady state", from, to: from + length }] });
      }
      jumps.push({ name: "Drain", windows: [{ name: "drain", from: last_start, to: end }] });
    }
    const group = controls.append("div").attr("class", "group").attr("role", "group").attr("aria-label", "Jump to");
    this.jump_buttons = group.selectAll("button").data(jumps).join("button").attr("type", "button");
    this.jump_buttons.text((jump) => jump.name);
    on(this.jump_buttons, "click", (_, jump) => this.jump(jump));
    this.mark_jump(jumps[0]);
    const zoom = controls.append("div").attr("class", "group").attr("role", "group").attr("aria-label", "Zoom");
    const button = (place, text) => place.append("button").attr("type", "button").text(text);
    on(button(zoom, "+").attr("aria-label", "Zoom in"), "click", () => this.zoom(0.5));
    on(button(zoom, "−").attr("aria-label", "Zoom out"), "click", () => this.zoom(2));

    const label = controls.append("label").text("Operator ");
    const list = `operators-${Math.random().toString(36).slice(2)}`;
    this.field = label.append("input").attr("type", "search").attr("list", list).attr("placeholder", "name, then Enter");
    const names = new Set(this.timeline.operators.concat(this.timeline.names));
    label.append("datalist").attr("id", list).selectAll("option").data([...names].slice(0, 2000)).join("option").attr("value", (d) => d);
    on(this.field, "input", () => this.search());
    on(this.field, "keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.next_match(event.shiftKey ? -1 : 1);
    });
    if (this.arrows.length > 0) {
      const choice = controls.append("label");
      const tick = choice.append("input").attr("type", "checkbox").property("checked", true);
      on(tick, "change", () => {
        this.shows_arrows = tick.property("checked");
        this.schedule();
      });
      choice.append("span").text("sends to receives");
    }
  }

  build_ranks(box) {
    const ranks = this.timeline.ranks;
    if (ranks.length < 2) return;
    const details = box.append("details").attr("class", "timeline-ranks");
    this.rank_summary = details.append("summary");
    const field = details.append("fieldset");
    field.append("legend").text("Ranks that are shown");
    const all = (chosen) => {
      this.shown = new Set(chosen);
      field.selectAll("input").property("checked", (_, i) => this.shown.has(i));
      this.ranks_changed();
    };
    const group = field.append("div").attr("class", "timeline-controls");
    on(group.append("button").attr("type", "button").text("All"), "click", () => all(range(ranks.length)));
    const ends = group.append("button").attr("type", "button").text("First and last");
    on(ends, "click", () => all(spread(ranks.length, 2)));
    const choice = field.selectAll("label").data(ranks).join("label");
    const tick = choice.append("input").attr("type", "checkbox").property("checked", (_, i) => this.shown.has(i));
    on(tick, "change", (event, rank) => {
      const i = ranks.indexOf(rank);
      if (event.currentTarget.checked) this.shown.add(i);
      else this.shown.delete(i);
      this.ranks_changed();
    });
    choice.append("span").text((rank) => ` ${this.rank_name(rank)}`);
    this.ranks_changed();
  }

  ranks_changed() {
    this.rank_summary.text(`Ranks: ${this.shown.size} of ${this.timeline.ranks.length} shown`);
    this.selected = null;
    this.hits = null;
    this.schedule();
  }

  build_table(box) {
    const times = this.timeline.ranks.map((rank) => times_by_kind(this.timeline, rank));
    const used = kinds.filter((kind) => times.some((time) => time[kind] > 0));
    const rows = this.timeline.ranks.map((rank, i) => ({
      name: this.rank_name(rank),
      peak_gib: rank.peak_gib,
      ...times[i],
    }));
    const columns = [
      { key: "name", label: "Rank" },
      { key: "peak_gib", label: "Peak memory", is_number: true, text: gib },
      ...used.map((kind) => ({
        key: kind,
        label: kind === "receive" ? "waiting in receives" : words(kind),
        is_number: true,
        text: (value) => seconds(value ?? 0),
      })),
    ];
    const details = box.append("details");
    details.append("summary").text("The figures as a table");
    table.render(details.append("div").node(), { columns, rows, caption: "Time of each rank by kind of work" });
  }

  rank_name(rank) {
    const also = rank.ranks > 1 ? ` (like ${number(rank.ranks - 1)} more)` : "";
    const pipeline = this.timeline.pipeline_parallel > 1 ? `, pipeline rank ${rank.pipeline}` : "";
    return `${rank.name ?? `rank ${rank.rank}`}${pipeline}${also}`;
  }

  time(ns) {
    return seconds(ns / 1e9, 4);
  }

  // What lies where: rows of the canvas, top to bottom.
  rows() {
    const found = [];
    let top = axis_height;
    for (const r of [...this.shown].sort((a, b) => a - b)) {
      const rank = this.timeline.ranks[r];
      found.push({ type: "rank", rank: r, top, height: header_height });
      top += header_height;
      rank.lanes.forEach((_, lane) => {
        found.push({ type: "lane", rank: r, lane, top, height: lane_height });
        top += lane_height;
      });
      if (rank.memory.times.length > 0) {
        found.push({ type: "memory", rank: r, top, height: memory_height });
        top += memory_height;
      }
      top += 6;
    }
    return { rows: found, height: top + 4 };
  }

  // Where the windows lie across the canvas.
  panes() {
    const width = this.canvas.clientWidth;
    const left = width < 560 ? 74 : 128;
    const windows = width < 560 ? this.windows.slice(0, 1) : this.windows;
    // Whole pixels: a column of one pixel is drawn sharp.
    const each = Math.floor((width - left - 2 - pane_gap * (windows.length - 1)) / windows.length);
    return windows.map((window, i) => {
      const from = left + i * (each + pane_gap);
      const scale = each / (window.to - window.from);
      return { window, left: from, width: each, scale, x: (time) => from + (time - window.from) * scale };
    });
  }

  schedule() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      this.draw();
    });
  }

  colours() {
    if (this.colour_names) return this.colour_names;
    const style = getComputedStyle(this.canvas);
    const read = (name) => style.getPropertyValue(name).trim();
    this.colour_names = {
      slices: kinds.map((kind) => read(css_name(kind))),
      pixels: kinds.map((kind) => {
        const { r, g, b } = color(read(css_name(kind)));
        return [r, g, b, kind === "receive" ? 0.4 : 1];
      }),
      text: read("--text"),
      quiet: read("--quiet"),
      ground: read("--ground"),
      raised: read("--raised"),
      grid: read("--grid"),
      rule: read("--rule"),
      accent: read("--accent"),
      bad: read("--bad"),
      memory: read("--memory-activations"),
    };
    return this.colour_names;
  }

  draw() {
    const began = performance.now();
    const ratio = window.devicePixelRatio || 1;
    const width = this.canvas.clientWidth;
    if (width === 0) return;
    const { rows, height } = this.rows();
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.style.height = `${height}px`;
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
    }
    const colours = this.colours();
    const pen = this.pen;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = colours.ground;
    pen.fillRect(0, 0, width, height);
    pen.font = "12px system-ui, 'Liberation Sans', sans-serif";
    pen.textBaseline = "middle";
    this.layout = { rows, height, panes: this.panes() };
    for (const pane of this.layout.panes) this.draw_pane(pane, rows, height);
    this.draw_names(rows, this.layout.panes[0].left);
    this.canvas.dataset.drawMs = (performance.now() - began).toFixed(2);
    this.canvas.dataset.windows = JSON.stringify(this.layout.panes.map(({ window }) => [window.from, window.to]));
  }

  draw_names(rows, left) {
    const { pen } = this;
    const colours = this.colours();
    for (const row of rows) {
      const rank = this.timeline.ranks[row.rank];
      pen.save();
      pen.beginPath();
      pen.rect(0, row.top, row.type === "rank" ? this.canvas.clientWidth : left - 4, row.height);
      pen.clip();
      if (row.type === "rank") {
        pen.fillStyle = colours.text;
        pen.font = "600 12px system-ui, 'Liberation Sans', sans-serif";
        pen.fillText(this.rank_name(rank), 0, row.top + row.height / 2 + 1);
        pen.font = "12px system-ui, 'Liberation Sans', sans-serif";
      } else if (row.type === "lane") {
        pen.fillStyle = colours.quiet;
        pen.fillText(words(rank.lanes[row.lane].name), 8, row.top + row.height / 2);
      } else {
        pen.fillStyle = colours.quiet;
        pen.fillText(left < 100 ? "peak" : "memory, peak", 8, row.top + 13);
        pen.fillText(gib(rank.peak_gib), 8, row.top + 28);
      }
      pen.restore();
    }
  }

  draw_pane(pane, rows, height) {
    const { pen } = this;
    const colours = this.colours();
    const { window, left, width } = pane;
    const ticks = Math.max(1, Math.floor(width / 110));
    for (let i = 0; i <= ticks; ++i) {
      const time = window.from + ((window.to - window.from) * i) / ticks;
      pen.fillStyle = colours.grid;
      pen.fillRect(pane.x(time), axis_height - 4, 1, height);
      const is_under_name = this.layout.panes.length > 1 && pane.x(time) + 62 > left + width - pen.measureText(window.name).width;
      if ((i === ticks && ticks > 1) || is_under_name) continue;
      pen.fillStyle = colours.quiet;
      pen.fillText(this.tick_text(time, window), pane.x(time) + 2, 8);
    }
    pen.save();
    pen.beginPath();
    pen.rect(left, axis_height, width, height);
    pen.clip();
    for (const row of rows) {
      if (row.type === "lane") this.draw_lane(pane, row);
      else if (row.type === "memory") this.draw_memory(pane, row);
    }
    this.draw_arrows(pane, rows);
    pen.restore();
    if (this.layout.panes.length > 1) {
      pen.fillStyle = colours.accent;
      pen.textAlign = "right";
      pen.fillText(window.name, left + width, 8);
      pen.textAlign = "left";
    }
  }

  // As many digits as tell two ticks apart.
  tick_text(time, window) {
    const length = (window.to - window.from) / 1e9;
    const [size, name] = length >= 1 ? [1e9, "s"] : length >= 1e-3 ? [1e6, "ms"] : [1e3, "µs"];
    const digits = Math.max(0, Math.min(4, 2 - Math.floor(Math.log10((window.to - window.from) / size))));
    return `${(time / size).toFixed(digits)} ${name}`;
  }

  // Wide slices are boxes; of all others a strip of pixels is drawn at once, each in the colour of what covers most of it, as dense
  // as it is covered.
  draw_lane(pane, row) {
    const { pen } = this;
    const colours = this.colours();
    const lane = this.timeline.ranks[row.rank].lanes[row.lane];
    const { kind } = this.timeline.operations;
    const { window, scale } = pane;
    const top = row.top + 2;
    const tall = row.height - 4;
    pen.fillStyle = colours.raised;
    pen.fillRect(pane.left, top, pane.width, tall);
    const strip = this.strip_of(pane.width);
    const { matches } = this;
    const boxes = [];
    for (let i = after(lane.ends, window.from); i < lane.count && lane.starts[i] < window.to; ++i) {
      const x = (lane.starts[i] - window.from) * scale;
      const end = (lane.ends[i] - window.from) * scale;
      if (end - x >= narrowest_box) boxes.push(i);
      else strip.cover(x, end, lane.operation[i], matches !== null && matches[lane.operation[i]] === 0);
    }
    strip.draw(pen, pane.left, top, tall, (operation) => colours.pixels[kind[operation]]);
    for (const i of boxes) this.draw_box(pane, row, lane, i);
    const chosen = this.selected;
    if (chosen && chosen.rank === row.rank && chosen.lane === row.lane) {
      pen.strokeStyle = colours.text;
      pen.lineWidth = 2;
      const x = pane.x(lane.starts[chosen.slice]);
      pen.strokeRect(x, top, Math.max(2, (lane.ends[chosen.slice] - lane.starts[chosen.slice]) * scale), tall);
      pen.lineWidth = 1;
    }
  }

  strip_of(width) {
    this.strips ??= new Map();
    if (!this.strips.has(width)) this.strips.set(width, new Strip(width));
    return this.strips.get(width);
  }

  draw_box(pane, row, lane, i) {
    const { pen } = this;
    const colours = this.colours();
    const operation = lane.operation[i];
    const kind = this.timeline.operations.kind[operation];
    const is_dim = this.matches !== null && this.matches[operation] === 0;
    const waits = kinds[kind] === "receive";
    const top = row.top + 2;
    const tall = row.height - 4;
    const from = Math.max(pane.x(lane.starts[i]), pane.left - 4);
    const to = Math.min(pane.x(lane.ends[i]), pane.left + pane.width + 4);
    pen.globalAlpha = is_dim ? dim_alpha : 1;
    if (waits) this.draw_waiting(from, top, to - from, tall, colours.slices[kind]);
    else {
      pen.fillStyle = colours.slices[kind];
      pen.fillRect(from, top, to - from - (to - from > 4 ? 0.75 : 0), tall);
    }
    pen.globalAlpha = 1;
    if (to - from <= 22) return;
    const text = short_label(this.timeline, operation, lane.micro_batch[i]);
    pen.fillStyle = waits || is_dim ? colours.quiet : "#10131a";
    // Seven pixels a letter are enough: measuring each takes longer than drawing it.
    if (7 * text.length < to - from - 4) pen.fillText(text, Math.max(from, pane.left) + 3, row.top + row.height / 2 + 1);
  }

  // A receive waits until its data have come: an empty frame, not a busy bar.
  draw_waiting(left, top, width, height, colour) {
    const { pen } = this;
    pen.strokeStyle = colour;
    pen.setLineDash([3, 3]);
    pen.strokeRect(left + 0.5, top + 3.5, Math.max(1, width - 1), height - 7);
    pen.setLineDash([]);
  }

  draw_memory(pane, row) {
    const { pen } = this;
    const colours = this.colours();
    const rank = this.timeline.ranks[row.rank];
    const { times, gib: held } = rank.memory;
    const capacity = this.options.capacity_gib ?? 0;
    const most = Math.max(...this.timeline.ranks.map((other) => other.peak_gib), capacity) * 1.05 || 1;
    const bottom = row.top + row.height - 2;
    const y = (value) => bottom - ((row.height - 4) * value) / most;
    pen.fillStyle = colours.memory;
    pen.globalAlpha = 0.45;
    pen.beginPath();
    pen.moveTo(pane.left, bottom);
    let i = Math.max(0, after(times, pane.window.from) - 1);
    let last = held[i] ?? 0;
    pen.lineTo(pane.left, y(last));
    // Within a pixel the highest and the last of it: peaks stay visible.
    let pixel = pane.left;
    let highest = last;
    for (++i; i < times.length && times[i] <= pane.window.to; ++i) {
      const x = Math.floor(pane.x(times[i]));
      if (x !== pixel) {
        pen.lineTo(pixel, y(highest));
        pen.lineTo(pixel, y(last));
        pen.lineTo(x, y(last));
        pixel = x;
        highest = last;
      }
      last = held[i];
      if (last > highest) highest = last;
    }
    pen.lineTo(pixel, y(highest));
    pen.lineTo(pixel, y(last));
    const end = Math.min(pane.x(this.timeline.makespan_ns), pane.left + pane.width);
    pen.lineTo(end, y(last));
    pen.lineTo(end, bottom);
    pen.fill();
    pen.globalAlpha = 1;
    const line = (value, colour, dash) => {
      pen.strokeStyle = colour;
      pen.setLineDash(dash);
      pen.beginPath();
      pen.moveTo(pane.left, y(value));
      pen.lineTo(pane.left + pane.width, y(value));
      pen.stroke();
      pen.setLineDash([]);
    };
    line(rank.peak_gib, colours.quiet, [2, 3]);
    if (capacity > 0) line(capacity, colours.bad, [5, 3]);
  }

  draw_arrows(pane, rows) {
    const chosen = this.selected && this.arrow_of.get(`${this.selected.rank} ${this.selected.lane} ${this.selected.slice}`);
    if (!this.shows_arrows && !chosen) return;
    const middle = new Map();
    for (const row of rows)
      if (row.type === "lane") middle.set(`${row.rank} ${row.lane}`, row.top + row.height / 2);
    const ends = (arrow) => {
      const [from, to] = [arrow.from, arrow.to].map((end) => ({
        y: middle.get(`${end.rank} ${end.lane}`),
        lane: this.timeline.ranks[end.rank].lanes[end.lane],
        slice: end.slice,
      }));
      if (from.y === undefined || to.y === undefined) return null;
      const left = from.lane.starts[from.slice];
      const arrived = to.lane.ends[to.slice];
      if (arrived < pane.window.from || left > pane.window.to) return null;
      return { x0: pane.x(left), y0: from.y, x1: pane.x(arrived), y1: to.y };
    };
    const drawn = [];
    if (this.shows_arrows)
      for (const arrow of this.arrows) {
        const found = ends(arrow);
        if (found) drawn.push(found);
        if (drawn.length > most_arrows) break;
      }
    const { pen } = this;
    const colours = this.colours();
    if (drawn.length <= most_arrows) {
      pen.strokeStyle = colours.quiet;
      pen.globalAlpha = 0.4;
      pen.beginPath();
      for (const { x0, y0, x1, y1 } of drawn) {
        pen.moveTo(x0, y0);
        const bend = Math.min(40, Math.abs(x1 - x0) / 2 + 8);
        pen.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
      }
      pen.stroke();
      pen.globalAlpha = 1;
    }
    const found = chosen && ends(chosen);
    if (!found) return;
    const { x0, y0, x1, y1 } = found;
    pen.strokeStyle = colours.text;
    pen.fillStyle = colours.text;
    pen.lineWidth = 2;
    pen.beginPath();
    pen.moveTo(x0, y0);
    pen.lineTo(x1, y1);
    pen.stroke();
    pen.lineWidth = 1;
    pen.beginPath();
    pen.arc(x1, y1, 3.5, 0, 7);
    pen.fill();
  }

  // Which slice is at a point of the canvas.
  at(x, y) {
    const row = this.layout.rows.find((one) => one.type === "lane" && y >= one.top && y < one.top + one.height);
    const pane = this.pane_at(x);
    if (!row || !pane) return null;
    const lane = this.timeline.ranks[row.rank].lanes[row.lane];
    const time = pane.window.from + (x - pane.left) / pane.scale;
    const slice = after(lane.ends, time);
    const room = 1.5 / pane.scale; // narrow slices can be pointed at
    if (slice >= lane.count || lane.starts[slice] > time + room) return null;
    return { rank: row.rank, lane: row.lane, slice };
  }

  pane_at(x) {
    return this.layout.panes.find((pane) => x >= pane.left && x <= pane.left + pane.width);
  }

  text_of({ rank, lane, slice }) {
    const { timeline } = this;
    const own = timeline.ranks[rank].lanes[lane];
    const operation = own.operation[slice];
    const micro_batch = own.micro_batch[slice];
    const { bytes, stage } = timeline.operations;
    const kind = kind_of(timeline, operation);
    const parts = [name_of(timeline, operation)];
    if (micro_batch >= 0) parts.push(`micro-batch ${micro_batch_text(timeline, micro_batch)}`);
    if (stage[operation] >= 0 && timeline.stages > 1) parts.push(`stage ${stage[operation]}`);
    if (bytes[operation] > 0) parts.push(gib(bytes[operation] / 2 ** 30));
    const length = own.ends[slice] - own.starts[slice];
    parts.push(`${this.time(own.starts[slice])} + ${this.time(length)}${kind === "receive" ? ", waiting until the data have come" : ""}`);
    const [first, end] = operators_of(timeline, operation);
    if (end > first)
      parts.push(
        end - first === 1
          ? timeline.operators[first]
          : `${end - first} operators, ${timeline.operators[first]} to ${timeline.operators[end - 1]}`,
      );
    return `${this.rank_name(timeline.ranks[rank])}: ${parts.join(" · ")}`;
  }

  select_slice(found, moves = false) {
    this.selected = found;
    if (found) {
      this.said.text(this.text_of(found));
      if (moves) this.show_slice(found);
    }
    this.schedule();
  }

  // Moves the first window so that a slice is in it, wide enough to be seen.
  show_slice({ rank, lane, slice }) {
    const own = this.timeline.ranks[rank].lanes[lane];
    const [start, end] = [own.starts[slice], own.ends[slice]];
    const now = this.panes().find(({ window }) => start >= window.from && end <= window.to);
    if (now && (end - start) * now.scale > 3) return;
    const current = this.windows[0].to - this.windows[0].from;
    const length = Math.max(shortest_window_ns, Math.min(current, Math.max((end - start) * 12, shortest_window_ns)), end - start);
    this.set_windows([{ name: "", from: (start + end - length) / 2, to: (start + end + length) / 2 }]);
  }

  set_windows(windows) {
    const end = this.timeline.makespan_ns;
    this.windows = windows.map((window) => {
      const length = Math.min(end, Math.max(shortest_window_ns, window.to - window.from));
      const from = Math.max(0, Math.min(window.from, end - length));
      return { ...window, from, to: from + length };
    });
    this.mark_jump(null);
    this.schedule();
  }

  jump(jump) {
    this.set_windows(jump.windows);
    this.mark_jump(jump);
  }

  mark_jump(jump) {
    this.jump_buttons.attr("aria-pressed", (d) => String(d === jump));
  }

  zoom(factor, index = 0, time = null) {
    this.set_windows(
      this.windows.map((window, i) => {
        if (i !== index && this.windows.length > 1) return window;
        const about = time ?? (window.from + window.to) / 2;
        return { ...window, from: about - (about - window.from) * factor, to: about + (window.to - about) * factor };
      }),
    );
  }

  pan(share, index = 0) {
    this.set_windows(
      this.windows.map((window, i) => {
        if (i !== index) return window;
        const by = (window.to - window.from) * share;
        return { ...window, from: window.from + by, to: window.to + by };
      }),
    );
  }

  search() {
    this.matches = matching(this.timeline, this.field.property("value"));
    this.hits = null;
    if (this.matches === null) this.said.text("");
    else {
      const found = this.found();
      this.said.text(
        found.length === 0 ? "No slice on the ranks shown runs it." : `${number(found.length)} slices; Enter goes to the next.`,
      );
    }
    this.schedule();
  }

  // Slices that match, on the ranks shown, in order of time.
  found() {
    if (this.hits) return this.hits;
    const hits = [];
    for (const rank of [...this.shown].sort((a, b) => a - b))
      this.timeline.ranks[rank].lanes.forEach((own, lane) => {
        for (let slice = 0; slice < own.count; ++slice)
          if (this.matches[own.operation[slice]]) hits.push({ rank, lane, slice, start: own.starts[slice] });
      });
    hits.sort((a, b) => a.start - b.start || a.rank - b.rank);
    this.hits = hits;
    this.hit = -1;
    return hits;
  }

  next_match(step) {
    if (this.matches === null) return;
    const hits = this.found();
    if (hits.length === 0) return;
    this.hit = (this.hit + step + hits.length) % hits.length;
    this.select_slice(hits[this.hit], true);
    this.said.text(`${number(this.hit + 1)} of ${number(hits.length)}: ${this.text_of(hits[this.hit])}`);
  }

  // The next slice of the lane, or the same moment in the next lane.
  step(by) {
    const now = this.selected;
    const first = [...this.shown].sort((a, b) => a - b)[0];
    if (first === undefined) return;
    if (!now) {
      const own = this.timeline.ranks[first].lanes[0];
      if (!own) return;
      const slice = Math.min(own.count - 1, after(own.ends, this.windows[0].from));
      this.select_slice({ rank: first, lane: 0, slice }, true);
      return;
    }
    const own = this.timeline.ranks[now.rank].lanes[now.lane];
    const slice = Math.max(0, Math.min(own.count - 1, now.slice + by));
    this.select_slice({ ...now, slice }, true);
  }

  step_lane(by) {
    const lanes = this.layout.rows.filter((row) => row.type === "lane");
    const now = this.selected;
    if (!now || lanes.length === 0) {
      this.step(0);
      return;
    }
    const at = lanes.findIndex((row) => row.rank === now.rank && row.lane === now.lane);
    const row = lanes[Math.max(0, Math.min(lanes.length - 1, at + by))];
    const time = this.timeline.ranks[now.rank].lanes[now.lane].starts[now.slice];
    const own = this.timeline.ranks[row.rank].lanes[row.lane];
    const slice = Math.min(own.count - 1, after(own.ends, time));
    this.select_slice({ rank: row.rank, lane: row.lane, slice }, true);
  }

  listen() {
    const { canvas } = this;
    const point = (event) => {
      const frame = canvas.getBoundingClientRect();
      return [event.clientX - frame.left, event.clientY - frame.top];
    };
    let grabbed = null;
    const listen = (type, handler) => canvas.addEventListener(type, handler, { passive: false });
    listen("wheel", (event) => {
      const pane = this.pane_at(point(event)[0]);
      if (!pane || (!event.ctrlKey && !event.metaKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY))) return;
      event.preventDefault();
      const index = this.layout.panes.indexOf(pane);
      if (!event.ctrlKey && !event.metaKey) this.pan(event.deltaX / pane.width, index);
      else this.zoom(Math.exp(event.deltaY * 0.0025), index, pane.window.from + (point(event)[0] - pane.left) / pane.scale);
    });
    listen("pointerdown", (event) => {
      const [x, y] = point(event);
      const pane = this.pane_at(x);
      if (!pane) return;
      grabbed = { x, y, index: this.layout.panes.indexOf(pane), window: pane.window, scale: pane.scale, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    listen("pointermove", (event) => {
      const [x, y] = point(event);
      if (grabbed) {
        const by = (grabbed.x - x) / grabbed.scale;
        if (Math.abs(grabbed.x - x) > 3) grabbed.moved = true;
        if (!grabbed.moved) return;
        const { from, to } = grabbed.window;
        this.set_windows(this.windows.map((window, i) => (i === grabbed.index ? { ...window, from: from + by, to: to + by } : window)));
        return;
      }
      const found = this.layout && this.at(x, y);
      this.tip.attr("hidden", found ? null : "");
      if (!found) return;
      this.tip.text(this.text_of(found));
      const width = this.tip.node().offsetWidth;
      this.tip.style("left", `${Math.max(0, Math.min(x + 12, canvas.clientWidth - width))}px`);
      this.tip.style("top", `${canvas.offsetTop + y + 16}px`);
    });
    listen("pointerup", (event) => {
      if (grabbed && !grabbed.moved) this.select_slice(this.at(...point(event)));
      grabbed = null;
    });
    listen("pointercancel", () => (grabbed = null));
    listen("pointerleave", () => this.tip.attr("hidden", ""));
    listen("dblclick", () => this.jump(this.jump_buttons.data().find((jump) => jump.name === "Whole step")));
    listen("keydown", (event) => this.key(event));
    const observer = new ResizeObserver(() => this.schedule());
    observer.observe(canvas.parentNode);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const recolour = () => {
      this.colour_names = null;
      this.schedule();
    };
    scheme.addEventListener("change", recolour);
    addEventListener("beforeprint", recolour);
    this.end = () => {
      observer.disconnect();
      scheme.removeEventListener("change", recolour);
      removeEventListener("beforeprint", recolour);
      if (this.frame) cancelAnimationFrame(this.frame);
    };
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const index = 0;
    const actions = {
      ArrowLeft: () => this.pan(-0.2, index),
      ArrowRight: () => this.pan(0.2, index),
      ArrowUp: () => this.step_lane(-1),
      ArrowDown: () => this.step_lane(1),
      "+": () => this.zoom(0.6, index),
      "=": () => this.zoom(0.6, index),
      "-": () => this.zoom(1 / 0.6, index),
      0: () => this.jump(this.jump_buttons.data().find((jump) => jump.name === "Whole step")),
      n: () => this.step(1),
      p: () => this.step(-1),
      Escape: () => this.select_slice(null),
    };
    const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }
}

export function render(root, data, options = {}) {
  const timeline = new Timeline(root, data, options);
  on_end(root, timeline.end);
  return timeline;
}
