// A list of any length: only the rows that can be seen are in the document.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../../vendor/htm-preact.js";

const OVERSCAN = 6;

/** ``row(index)`` gives the content of a row and ``rowClass(index)`` its classes. ``active`` is the selected row, -1 for none.
 *  ``reveal`` is a row to scroll to. ``follow`` keeps the end in view while rows are added, unless the user scrolled away from it. */
export function VirtualList({ name, count, rowHeight = 26, row, rowClass, active = -1, reveal, onSelect, follow = false, empty }) {
  const box = useRef(null);
  const atEnd = useRef(true);
  const [view, setView] = useState({ top: 0, height: 400 });
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    const measure = () => setView({ top: element.scrollTop, height: element.clientHeight });
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, [count > 0]);
  useEffect(() => {
    const element = box.current;
    if (!element || reveal == null || reveal < 0) return;
    const top = reveal * rowHeight;
    if (top < element.scrollTop || top + rowHeight > element.scrollTop + element.clientHeight) {
      element.scrollTop = Math.max(0, top - (element.clientHeight - rowHeight) / 2);
    }
  }, [reveal]);
  useEffect(() => {
    if (follow && atEnd.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [follow, count]);
  if (count === 0) return html`<div class="vlist-empty">${empty}</div>`;
  const first = Math.max(0, Math.floor(view.top / rowHeight) - OVERSCAN);
  const last = Math.min(count, Math.ceil((view.top + view.height) / rowHeight) + OVERSCAN);
  const move = (event) => {
    const page = Math.max(1, Math.floor(view.height / rowHeight) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -count, End: count };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const begin = Math.ceil(view.top / rowHeight); // the first row that is wholly in view
    const next = active >= 0 ? active + step : Math.abs(step) === 1 ? begin : begin + step;
    onSelect(Math.max(0, Math.min(count - 1, next)));
  };
  const scrolled = ({ currentTarget: list }) => {
    atEnd.current = list.scrollTop + list.clientHeight >= list.scrollHeight - 2 * rowHeight;
    setView({ top: list.scrollTop, height: list.clientHeight });
  };
  const rows = [];
  for (let index = first; index < last; index++) {
    rows.push(html`<div
      key=${index}
      id=${`${name}-${index}`}
      class=${`vrow ${rowClass(index)}`}
      role="option"
      aria-selected=${index === active ? "true" : "false"}
      aria-setsize=${count}
      aria-posinset=${index + 1}
      style=${{ top: `${index * rowHeight}px`, height: `${rowHeight}px` }}
      onClick=${() => onSelect(index)}
    >
      ${row(index)}
    </div>`);
  }
  return html`<div
    ref=${box}
    class="vlist"
    role="listbox"
    tabindex="0"
    aria-label=${name}
    aria-activedescendant=${active >= first && active < last ? `${name}-${active}` : undefined}
    onScroll=${scrolled}
    onKeyDown=${move}
  >
    <div class="vlist-space" role="presentation" style=${{ height: `${count * rowHeight}px` }}>${rows}</div>
  </div>`;
}
