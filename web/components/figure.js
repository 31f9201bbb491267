// What every chart shares: a caption, a drawing that follows the width of its place, and the same figures as a table.
import { select } from "d3-selection";
import { on } from "./events.js";
import * as table from "./table.js";

const endings = new WeakMap(); // root -> how its present content stops following the window

// Empties `root` and ends what was drawn there before.
export function clear(root) {
  endings.get(root)?.();
  endings.delete(root);
  root.replaceChildren();
}

export function on_end(root, end) {
  const before = endings.get(root);
  endings.set(root, () => {
    before?.();
    end();
  });
}

// `draw(place, width)` is called now and whenever the width changes; `place` is empty then.
// content: {title, note, summary (said to who does not see the drawing), table: what table.render takes}
export function figure(root, content, draw) {
  clear(root);
  const box = select(root).append("figure").attr("class", "chart");
  const caption = box.append("figcaption");
  if (content.title) caption.append("h3").text(content.title);
  if (content.note) caption.append("p").text(content.note);
  const place = box.append("div").attr("class", "plot").attr("role", "img");
  place.attr("aria-label", content.summary ?? content.title ?? "chart");
  if (content.table) {
    const details = box.append("details");
    details.append("summary").text("The figures as a table");
    table.render(details.append("div").node(), content.table);
  }
  let width = 0;
  const redraw = () => {
    const now = Math.floor(place.node().clientWidth);
    if (now === 0 || now === width) return;
    width = now;
    place.node().replaceChildren();
    draw(place.node(), width);
  };
  const observer = new ResizeObserver(redraw);
  observer.observe(place.node());
  on_end(root, () => observer.disconnect());
  redraw();
  return box.node();
}

// Which colour is what. items: [{name, colour}]
export function legend(place, items) {
  const list = select(place).append("ul").attr("class", "legend").attr("aria-hidden", "true");
  const item = list.selectAll("li").data(items).join("li");
  item.append("span").attr("class", (d) => `swatch ${d.class ?? ""}`).style("background", (d) => d.colour);
  item.append("span").text((d) => d.name);
  return list.node();
}

// A label that follows the pointer over marks of a drawing, and stands beside one that has the focus.
export function tips(place, marks, text_of) {
  const tip = select(place).append("div").attr("class", "tip").attr("hidden", "");
  const show = (event, d) => {
    tip.attr("hidden", null).text(text_of(d));
    const frame = place.getBoundingClientRect();
    const mark = event.currentTarget.getBoundingClientRect();
    const x = (event.clientX || mark.left + mark.width / 2) - frame.left;
    const y = (event.clientY || mark.top) - frame.top;
    const width = tip.node().offsetWidth;
    tip.style("left", `${Math.max(0, Math.min(x + 12, frame.width - width))}px`).style("top", `${y + 14}px`);
  };
  on(marks, "mousemove focus", show);
  on(marks, "mouseleave blur", () => tip.attr("hidden", ""));
}
