// Times on the axis of a waterfall.

/** A time as shown beside a row: 0.4 ms, 312 ms, 4.105 s. */
export function moment(seconds, timed = true) {
  if (!timed) return `#${Math.round(seconds * 1000) + 1}`;
  if (seconds < 0) return "–";
  if (seconds < 0.01) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 3 : 2)} s`;
  return `${Math.floor(seconds / 60)} min ${(seconds % 60).toFixed(1)} s`;
}

/** Round places on an axis from ``begin`` to ``end``, about ``count`` of them. */
export function ticks(begin, end, count) {
  const span = Math.max(1e-6, end - begin);
  const rough = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const found = [];
  for (let at = Math.ceil(begin / step) * step; at <= end + step * 1e-6; at += step) found.push(at);
  return found;
}
