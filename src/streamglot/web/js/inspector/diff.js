// Differences between two texts, line by line.

const MAX_LINES = 4000; // of each text: more cannot be read, and costs its square in the worst case
const MAX_STEPS = 2_000_000; // of the comparison: about 50 ms

/** The lines of both texts in one list: {kind: "same" | "gone" | "new", text}. Long texts that differ widely are given as all old,
 *  then all new lines. */
export function diffLines(before, after) {
  const old = before.split("\n").slice(0, MAX_LINES);
  const young = after.split("\n").slice(0, MAX_LINES);
  let begin = 0;
  while (begin < old.length && begin < young.length && old[begin] === young[begin]) begin++;
  let end = 0;
  while (end < old.length - begin && end < young.length - begin && old.at(-1 - end) === young.at(-1 - end)) end++;
  const middle = changed(old.slice(begin, old.length - end), young.slice(begin, young.length - end));
  return [
    ...old.slice(0, begin).map((text) => ({ kind: "same", text })),
    ...middle,
    ...old.slice(old.length - end).map((text) => ({ kind: "same", text })),
  ];
}

/** The shortest way from one list of lines to the other, by Myers' algorithm. */
function changed(old, young) {
  const most = old.length + young.length;
  const reach = new Map([[1, 0]]);
  const trail = [];
  let steps = 0;
  for (let cost = 0; cost <= most; cost++) {
    trail.push(new Map(reach));
    for (let line = -cost; line <= cost; line += 2) {
      const down = line === -cost || (line !== cost && (reach.get(line - 1) ?? -1) < (reach.get(line + 1) ?? -1));
      let x = down ? (reach.get(line + 1) ?? 0) : (reach.get(line - 1) ?? 0) + 1;
      let y = x - line;
      while (x < old.length && y < young.length && old[x] === young[y]) {
        x++;
        y++;
        steps++;
      }
      reach.set(line, x);
      if (x >= old.length && y >= young.length) return traced(trail, old, young, cost);
    }
    steps += cost;
    if (steps > MAX_STEPS || cost > 1500) break;
  }
  return [...old.map((text) => ({ kind: "gone", text })), ...young.map((text) => ({ kind: "new", text }))];
}

function traced(trail, old, young, cost) {
  const found = [];
  let x = old.length;
  let y = young.length;
  for (let step = cost; step > 0; step--) {
    const reach = trail[step];
    const line = x - y;
    const down = line === -step || (line !== step && (reach.get(line - 1) ?? -1) < (reach.get(line + 1) ?? -1));
    const from = down ? line + 1 : line - 1;
    const fromX = reach.get(from) ?? 0;
    const fromY = fromX - from;
    while (x > fromX && y > fromY) {
      found.push({ kind: "same", text: old[--x] });
      y--;
    }
    if (down) found.push({ kind: "new", text: young[--y] });
    else found.push({ kind: "gone", text: old[--x] });
  }
  while (x > 0 && y > 0) {
    found.push({ kind: "same", text: old[--x] });
    y--;
  }
  return found.reverse();
}

/** The same differences as two columns: pairs of {left, right}, each a line or null. */
export function sideBySide(before, after) {
  const rows = [];
  let gone = [];
  let young = [];
  const flush = () => {
    for (let index = 0; index < Math.max(gone.length, young.length); index++) {
      rows.push({ left: gone[index] ?? null, right: young[index] ?? null, same: false });
    }
    gone = [];
    young = [];
  };
  for (const { kind, text } of diffLines(before, after)) {
    if (kind === "gone") gone.push(text);
    else if (kind === "new") young.push(text);
    else {
      flush();
      rows.push({ left: text, right: text, same: true });
    }
  }
  flush();
  return rows;
}
