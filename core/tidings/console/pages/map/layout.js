/** Where the cells of the map lie: as large as they may be while the whole map still fits the height that is wanted. */
const PITCHES = [20, 18, 16, 14, 12, 11, 10, 9, 8, 7, 6];
const GAP = 6;
const LABEL_LINE = 15;
const LABEL_ROOM = 16;
const EVEN = 8; // shards below one another differ by a round number
const NARROW = 560;

/** `lengths` are the numbers of shards of the rows, `labels` how wide their longest label is. All in CSS pixels. */
export function layout(lengths, labels, width, wanted) {
  const above = width < NARROW;
  const label = above ? 0 : Math.min(Math.ceil(labels) + LABEL_ROOM, Math.round(width * 0.24));
  let made;
  for (const pitch of PITCHES) {
    made = arrange(lengths, width, label, above, pitch);
    if (made.height <= wanted) break;
  }
  return made;
}

function arrange(lengths, width, label, above, pitch) {
  const fitting = Math.max(1, Math.floor((width - label) / pitch));
  const columns = fitting > EVEN ? fitting - (fitting % EVEN) : fitting;
  const tops = new Float64Array(lengths.length + 1);
  for (let row = 0; row < lengths.length; row++) {
    const lines = Math.max(1, Math.ceil(lengths[row] / columns));
    const high = above ? LABEL_LINE + lines * pitch : Math.max(LABEL_LINE, lines * pitch);
    tops[row + 1] = tops[row] + high + GAP;
  }
  return { pitch, columns, label, above, tops, width, height: tops[lengths.length] };
}

/** The row at this height. */
export function rowAt({ tops }, y) {
  let low = 0;
  let high = tops.length - 2;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (tops[middle] <= y) low = middle;
    else high = middle - 1;
  }
  return low;
}

export function cellPlace({ tops, columns, pitch, label, above }, row, shard) {
  const top = tops[row] + (above ? LABEL_LINE : 0);
  return [label + (shard % columns) * pitch, top + Math.floor(shard / columns) * pitch];
}

/** [row, shard] of the cell here, shard null beside the cells, or null outside of all. */
export function cellAt(made, lengths, x, y) {
  if (y < 0 || y >= made.height || !lengths.length) return null;
  const row = rowAt(made, y);
  const [left, top] = cellPlace(made, row, 0);
  const column = Math.floor((x - left) / made.pitch);
  const line = Math.floor((y - top) / made.pitch);
  const shard = line * made.columns + column;
  const inside = column >= 0 && column < made.columns && line >= 0 && shard < lengths[row];
  return [row, inside ? shard : null];
}
