/** Values over time, drawn by uPlot. The title's figure is the newest one, or the one under the pointer. */
import uPlot from "../vendor/uplot/uPlot.js";
import { UNKNOWN } from "../format.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { useStore } from "../store.js";
import { colour, repaint } from "../theme.js";

const HEIGHT = 112;
const AXIS = 46;

/** `times` in epoch seconds, `values` with null where nothing is known. `line` is a colour of the style sheet. */
export function Chart({ title, times, values, format, line = "--line-1", height = HEIGHT, sync }) {
  const box = useRef(null);
  const plot = useRef(null);
  const [under, setUnder] = useState(null);
  const drawn = useStore(repaint);

  useEffect(() => {
    const frame = box.current;
    const made = new uPlot(options(frame.clientWidth, height, format, line, sync, setUnder), [[], []], frame);
    plot.current = made;
    const resized = new ResizeObserver(() => made.setSize({ width: frame.clientWidth, height }));
    resized.observe(frame);
    return () => {
      resized.disconnect();
      made.destroy();
    };
  }, [drawn, height]);

  useEffect(() => {
    plot.current.setData([times ?? [], values ?? []]);
  }, [times, values, drawn]);

  const index = under ?? (values?.length ?? 0) - 1;
  const value = values?.[index];
  const when = under === null || !times ? "" : clock(times[index]);
  return html`<figure class="chart">
    <figcaption>
      <span>${title}</span>
      <span class="when">${when}</span>
      <strong>${value === undefined || value === null ? UNKNOWN : format(value)}</strong>
    </figcaption>
    <div ref=${box} class="plot" style=${{ height: `${height}px` }} role="img" aria-label=${`${title} over time`}></div>
  </figure>`;
}

function options(width, height, format, line, sync, setUnder) {
  const ink = colour("--muted");
  const grid = { stroke: colour("--hair"), width: 1 };
  const stroke = colour(line);
  return {
    width,
    height,
    padding: [6, 16, 0, 0],
    legend: { show: false },
    cursor: {
      y: false,
      drag: { x: false, y: false },
      points: { size: 7, fill: stroke, stroke },
      ...(sync ? { sync: { key: sync } } : {}),
    },
    scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(high ?? 0, 1) * 1.1] } },
    axes: [
      {
        stroke: ink,
        grid: { show: false },
        ticks: { show: false },
        size: 20,
        gap: 2,
        font: FONT,
        space: 70,
        values: (_, at) => at.map(clock),
      },
      {
        stroke: ink,
        grid,
        ticks: { show: false },
        size: AXIS,
        gap: 4,
        font: FONT,
        space: 32,
        values: (_, at) => at.map(format),
      },
    ],
    series: [{}, { stroke, width: 1.5, fill: soft(stroke), points: { show: false, filter: alone }, spanGaps: false }],
    hooks: { setCursor: [(made) => setUnder(made.cursor.idx ?? null)] },
  };
}

/** Points between two gaps: no line leads to them, so they are drawn as points. */
function alone(made, series) {
  const known = made.data[series].map((value) => value !== null && value !== undefined);
  return known.map((_, at) => at).filter((at) => known[at] && !known[at - 1] && !known[at + 1]);
}

const FONT = "11px system-ui, sans-serif";

function soft(rgb) {
  return rgb.replace(/^rgb\((.*)\)$/, "rgba($1, 0.09)");
}

function clock(seconds) {
  const at = new Date(seconds * 1000);
  return [at.getHours(), at.getMinutes(), ...(at.getSeconds() ? [at.getSeconds()] : [])]
    .map((part) => String(part).padStart(2, "0"))
    .join(":");
}
