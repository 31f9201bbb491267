// A table that sorts by its headers: data = {columns: [{key, label, is_number, text(value, row)}], rows: [object], caption}.
// options.filter: a field that keeps the rows with a text; options.sort: {key, descending} at the beginning;
// options.row_class(row)
import { select } from "d3-selection";
import { ascending, descending } from "d3-array";
import { on } from "./events.js";
import { number } from "./format.js";

export function text_of(column, row) {
  const value = row[column.key];
  if (column.text) return column.text(value, row);
  if (value === null || value === undefined) return "";
  return typeof value === "number" ? number(value) : String(value);
}

export function render(root, data, options = {}) {
  root.replaceChildren();
  const box = select(root);
  let order = options.sort ?? null;
  let kept = "";
  if (options.filter) {
    const field = box.append("label").attr("class", "filter").text("Rows with ").append("input");
    field.attr("type", "search");
    on(field, "input", (event) => {
      kept = event.currentTarget.value.toLowerCase();
      fill();
    });
  }
  const region = box.append("div").attr("class", "table").attr("role", "region").attr("tabindex", 0);
  region.attr("aria-label", data.caption ?? "table");
  const table = region.append("table");
  if (data.caption) table.append("caption").text(data.caption);
  const heads = table.append("thead").append("tr").selectAll("th").data(data.columns).join("th");
  heads.attr("scope", "col").attr("class", (column) => (column.is_number ? "number" : null));
  const buttons = heads.append("button").attr("type", "button").text((column) => column.label);
  on(buttons, "click", (_, column) => {
    const is_descending = order?.key === column.key ? !order.descending : Boolean(column.is_number);
    order = { key: column.key, descending: is_descending };
    fill();
  });
  const body = table.append("tbody");

  function fill() {
    heads.attr("aria-sort", (column) =>
      order?.key !== column.key ? null : order.descending ? "descending" : "ascending",
    );
    let rows = data.rows;
    if (kept)
      rows = rows.filter((row) =>
        data.columns.some((column) => text_of(column, row).toLowerCase().includes(kept)),
      );
    if (order) {
      const compare = order.descending ? descending : ascending;
      rows = [...rows].sort((a, b) => {
        const [x, y] = [a[order.key] ?? null, b[order.key] ?? null];
        if (x === null || y === null) return (x === null) - (y === null);
        return compare(x, y);
      });
    }
    const line = body.selectAll("tr").data(rows).join("tr");
    line.attr("class", options.row_class ? (row) => options.row_class(row) : null);
    line
      .selectAll("td")
      .data((row) => data.columns.map((column) => ({ column, row })))
      .join("td")
      .attr("class", ({ column }) => (column.is_number ? "number" : null))
      .attr("data-key", ({ column }) => column.key)
      .attr("data-value", ({ column, row }) =>
        typeof row[column.key] === "number" ? String(row[column.key]) : null,
      )
      .text(({ column, row }) => text_of(column, row));
  }
  fill();
}
