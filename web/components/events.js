// Listeners with the event and the datum, whichever version of d3-selection there is: its own pass them in another order since 2.0.
export function on(selection, types, handler) {
  for (const type of types.split(" "))
    selection.each(function (datum) {
      this.addEventListener(type, (event) => handler(event, datum), { passive: false });
    });
  return selection;
}
