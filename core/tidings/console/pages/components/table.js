/**
 * A table whose columns keep their widths, with rows that can be opened (a click), walked (j, k, Enter) and, where it
 * is asked for, selected (checkboxes, shift for a range, x for the row one stands at).
 *
 * A column is {key, title, cell(row), width, grow, align, sort, rank}: `width` in rem, which becomes up to `grow` where
 * there is room; the columns without one share the rest. When there is little, those of `rank` 3 go first, then those of
 * 2, and on a telephone those of 1.
 */
import { html, useEffect, useRef, useState } from "../html.js";
import { useKeys } from "../keys.js";
import { onRow } from "../row-click.js";

const LEAST_SHARE = 9; // rem, of a column without a width
const SELECT = 2;
const WIDE = 123; // rem: a window of 1600 pixels

export function Table({
  columns,
  rows,
  rowKey,
  caption,
  open,
  selection,
  sorted,
  onSort,
  skeleton = 8,
  walk = false,
  stale,
}) {
  const body = useRef(null);
  const place = useRef(-1); // two keys may come before the table is drawn again
  const [at, show] = useState(-1);
  useEffect(() => stand(Math.min(place.current, (rows?.length ?? 0) - 1)), [rows]);

  function stand(index) {
    place.current = index;
    show(index);
  }

  function step(by) {
    if (!rows?.length) return;
    stand(Math.max(0, Math.min(rows.length - 1, place.current + by)));
    body.current.rows[place.current]?.focus();
  }

  useKeys(
    walk
      ? {
          j: () => step(1),
          k: () => step(-1),
          Enter: () => place.current >= 0 && open && (location.hash = open(rows[place.current])),
          x: (event) => place.current >= 0 && selection?.toggle(rows, place.current, event.shiftKey),
        }
      : {},
  );

  return html`<div class="table-wrap" data-stale=${stale ? "" : null}>
    <table style=${least(columns, selection)}>
      <caption class="hidden-text">
        ${caption}
      </caption>
      <colgroup>
        ${selection && html`<col class="col-select" />`}
        ${columns.map((column) => html`<col data-rank=${column.rank} style=${column.width ? { width: widthOf(column) } : null} />`)}
      </colgroup>
      <thead>
        <tr>
          ${selection && html`<th scope="col" class="select"><${SelectAll} rows=${rows} selection=${selection} /></th>`}
          ${columns.map((column) => html`<${Head} column=${column} sorted=${sorted} onSort=${onSort} />`)}
        </tr>
      </thead>
      <tbody ref=${body}>
        ${
          rows
            ? rows.map(
                (row, index) =>
                  html`<tr
                    key=${rowKey(row)}
                    tabindex="-1"
                    data-at=${walk && index === at ? "" : null}
                    data-selected=${selection?.has(row) ? "" : null}
                    data-opens=${open ? "" : null}
                    onClick=${open && onRow(() => (location.hash = open(row)))}
                    onFocus=${() => walk && stand(index)}
                  >
                    ${
                      selection &&
                      html`<td class="select">
                        <input
                          type="checkbox"
                          aria-label=${`select ${rowKey(row)}`}
                          checked=${selection.has(row)}
                          onClick=${(event) => selection.toggle(rows, index, event.shiftKey)}
                        />
                      </td>`
                    }
                    ${columns.map((column, place) => html`<${Cell} column=${column} row=${row} first=${place === 0} />`)}
                  </tr>`,
              )
            : Array.from(
                { length: skeleton },
                () =>
                  html`<tr class="skeleton" aria-hidden="true">
                    ${selection && html`<td class="select"></td>`}
                    ${columns.map((column) => html`<td data-rank=${column.rank} data-align=${column.align}><span></span></td>`)}
                  </tr>`,
              )
        }
      </tbody>
    </table>
  </div>`;
}

function widthOf({ width, grow }) {
  return grow ? `clamp(${width}rem, ${((100 * grow) / WIDE).toFixed(2)}vw, ${grow}rem)` : `${width}rem`;
}

/** How wide it is at least with the columns up to each rank, so that none of them is left without room. */
function least(columns, selection) {
  const wide = (rank) =>
    columns
      .filter((column) => (column.rank ?? 0) <= rank)
      .reduce((sum, { width = LEAST_SHARE }) => sum + width, selection ? SELECT : 0);
  return { "--least-0": `${wide(0)}rem`, "--least-1": `${wide(1)}rem` };
}

function Cell({ column, row, first }) {
  const shared = { "data-rank": column.rank, "data-align": column.align, "data-wrap": column.wrap ? "" : null };
  if (first) return html`<th scope="row" ...${shared}>${column.cell(row)}</th>`;
  return html`<td ...${shared}>${column.cell(row)}</td>`;
}

function Head({ column, sorted, onSort }) {
  const shared = { scope: "col", "data-rank": column.rank, "data-align": column.align, title: column.hint };
  if (!column.sort || !onSort) return html`<th ...${shared}>${column.title}</th>`;
  const active = sorted === column.sort;
  return html`<th ...${shared} aria-sort=${active ? (column.order ?? "descending") : "none"}>
    <button type="button" class="sort" onClick=${() => onSort(column.sort)}>${column.title}</button>
  </th>`;
}

function SelectAll({ rows, selection }) {
  const box = useRef(null);
  const chosen = (rows ?? []).filter((row) => selection.has(row)).length;
  useEffect(() => {
    box.current.indeterminate = chosen > 0 && chosen < (rows?.length ?? 0);
  });
  return html`<input
    ref=${box}
    type="checkbox"
    aria-label="select all on this page"
    disabled=${!rows?.length}
    checked=${chosen > 0 && chosen === rows.length}
    onClick=${(event) => selection.setAll(rows, event.target.checked)}
  />`;
}
