/**
 * The map on a canvas. Only what can be seen is drawn, so that any number of rows scrolls smoothly, and while nothing
 * changes nothing is drawn. A cell that changes its owner fades in from grey, unless less motion is asked for.
 */
import { cellAt, cellPlace, layout, rowAt } from "./layout.js";
import { paintCell, paintFocus, paintLabel, palette } from "./paint.js";

const FADE_MS = 900;
const LABEL_FONT = "12px system-ui, sans-serif";

export class MapCanvas {
  /** `scroller` is the element that scrolls, with `spacer` as tall as the whole map and `canvas` over what is seen. */
  constructor(scroller, spacer, canvas) {
    this.scroller = scroller;
    this.spacer = spacer;
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    this.fading = new Map();
    this.cursor = null;
    this.lit = null;
    this.model = null;
    this.frame = 0;
  }

  show(model) {
    this.model = model;
    this.fading.clear();
    this.measure();
  }

  /** The size, the theme or the publishers are others than before. */
  measure() {
    if (!this.model) return;
    this.lengths = this.model.rows.map(({ owners }) => owners.length);
    const width = this.scroller.clientWidth;
    this.context.font = LABEL_FONT;
    const labels = this.model.rows.map((row) => this.context.measureText(labelOf(row)).width);
    this.made = layout(
      this.lengths,
      labels.reduce((most, one) => Math.max(most, one), 0),
      width,
      Math.max(320, innerHeight - 330),
    );
    this.spacer.style.height = `${Math.max(1, this.made.height)}px`;
    this.colours = palette(this.model.names);
    const high = this.scroller.clientHeight;
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(high * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${high}px`;
    this.redraw();
  }

  /** Cells as `applyChanges` gives them. */
  changed(cells) {
    this.colours = palette(this.model.names);
    if (!this.still.matches) {
      const now = performance.now();
      for (const [row, shard] of cells) this.fading.set(`${row} ${shard}`, now);
    }
    this.redraw();
  }

  redraw() {
    this.frame ||= requestAnimationFrame((now) => {
      this.frame = 0;
      this.draw(now);
      if (this.fading.size) this.redraw();
    });
  }

  draw(now) {
    const { context, made, model } = this;
    if (!made) return;
    const ratio = devicePixelRatio || 1;
    const top = this.scroller.scrollTop;
    const high = this.scroller.clientHeight;
    context.setTransform(ratio, 0, 0, ratio, 0, -top * ratio);
    context.clearRect(0, top, made.width, high);
    context.font = LABEL_FONT;
    for (let row = rowAt(made, top); row < model.rows.length && made.tops[row] < top + high; row++) {
      const { owners, states } = model.rows[row];
      paintLabel(context, this.colours, labelOf(model.rows[row]), made, row);
      const first = Math.max(0, Math.floor((top - made.tops[row]) / made.pitch) - 2) * made.columns;
      const end = Math.min(owners.length, Math.ceil((top + high - made.tops[row]) / made.pitch + 1) * made.columns);
      for (let shard = first; shard < end; shard++) {
        const fresh = this.fading.size ? this.freshness(row, shard, now) : 0;
        const dim = this.lit !== null && owners[shard] !== this.lit;
        context.globalAlpha = dim ? 0.18 : 1;
        paintCell(context, this.colours, cellPlace(made, row, shard), made.pitch, owners[shard], states[shard], fresh);
      }
      context.globalAlpha = 1;
    }
    for (const [key, since] of this.fading) if (now - since > FADE_MS) this.fading.delete(key);
    if (this.cursor) paintFocus(context, this.colours, cellPlace(made, ...this.cursor), made.pitch);
  }

  freshness(row, shard, now) {
    const since = this.fading.get(`${row} ${shard}`);
    return since === undefined ? 0 : Math.max(0, 1 - (now - since) / FADE_MS);
  }

  /** The cell under the pointer, as [row, shard or null], or null. */
  at(event) {
    if (!this.made) return null;
    const box = this.canvas.getBoundingClientRect();
    return cellAt(this.made, this.lengths, event.clientX - box.left, event.clientY - box.top + this.scroller.scrollTop);
  }

  /** Where a cell is, relative to what is seen. */
  place(cell) {
    const [x, y] = cellPlace(this.made, ...cell);
    return [x, y - this.scroller.scrollTop];
  }

  focus(cell) {
    this.cursor = cell;
    if (cell) {
      const y = cellPlace(this.made, ...cell)[1];
      const { scrollTop, clientHeight } = this.scroller;
      if (y < scrollTop) this.scroller.scrollTop = y - 4;
      else if (y + this.made.pitch > scrollTop + clientHeight)
        this.scroller.scrollTop = y + this.made.pitch - clientHeight + 4;
    }
    this.redraw();
  }

  /** The cell that an arrow key leads to. */
  step(cell, key) {
    const [row, shard] = cell ?? [0, 0];
    const { columns } = this.made;
    const length = this.lengths[row];
    if (key === "ArrowRight") return shard + 1 < length ? [row, shard + 1] : this.first(row + 1, cell);
    if (key === "ArrowLeft") return shard > 0 ? [row, shard - 1] : cell;
    if (key === "ArrowDown") return shard + columns < length ? [row, shard + columns] : this.first(row + 1, cell);
    if (key === "ArrowUp") return shard >= columns ? [row, shard - columns] : this.first(row - 1, cell);
    return cell;
  }

  first(row, otherwise) {
    return row >= 0 && row < this.lengths.length && this.lengths[row] ? [row, 0] : otherwise;
  }
}

function labelOf({ application, stream }) {
  return `${application} / ${stream}`;
}
