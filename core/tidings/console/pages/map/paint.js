/**
 * How a cell looks. The colour is its owner's; the state is a shape, which holds without colour too: full (running),
 * two bars (paused), small square (stopped), cross (failed), half (restarting), outline (waiting), dot (unassigned).
 */
import { COLOURS, look } from "../owners.js";
import { colour } from "../theme.js";
import { NOBODY } from "./model.js";

const ROUNDED = 10; // from this size on, corners are worth drawing

export function palette(names) {
  const owners = Array.from({ length: COLOURS }, (_, number) => colour(`--owner-${number}`));
  const nobody = colour("--nobody");
  return {
    owners: names.map((name) => owners[look(name).colour] ?? nobody),
    rounds: names.map((name) => look(name).round),
    nobody,
    ground: colour("--surface"),
    failed: colour("--bad"),
    ink: colour("--ink"),
    muted: colour("--muted"),
    focus: colour("--accent"),
  };
}

/** `fresh` from 1 down to 0: how lately the owner has come. */
export function paintCell(context, colours, [x, y], pitch, owner, letter, fresh = 0) {
  const size = pitch > 8 ? pitch - 2 : pitch - 1;
  const fill = owner === NOBODY ? colours.nobody : colours.owners[owner];
  context.fillStyle = fill;
  context.strokeStyle = fill;
  (SHAPES[letter] ?? SHAPES.r)(context, x, y, size, colours);
  if (owner !== NOBODY && pitch > 8) notches(context, colours, x, y, size, colours.rounds[owner]);
  if (fresh > 0) {
    context.globalAlpha = fresh * 0.75;
    context.fillStyle = colours.ground;
    context.fillRect(x, y, size, size);
    context.globalAlpha = 1;
  }
}

export function paintLabel(context, colours, text, made, row) {
  context.fillStyle = colours.muted;
  context.textBaseline = "top";
  context.fillText(shorten(context, text, (made.above ? made.width : made.label) - 12), 0, made.tops[row] + 1);
}

export function paintFocus(context, colours, [x, y], pitch) {
  const size = pitch > 8 ? pitch - 2 : pitch - 1;
  context.strokeStyle = colours.focus;
  context.lineWidth = 2;
  context.strokeRect(x - 1, y - 1, size + 2, size + 2);
}

const SHAPES = {
  r(context, x, y, size) {
    if (size < ROUNDED) return context.fillRect(x, y, size, size);
    context.beginPath();
    context.roundRect(x, y, size, size, 2);
    return context.fill();
  },
  p(context, x, y, size) {
    const bar = Math.max(1, Math.round(size * 0.36));
    context.fillRect(x, y, bar, size);
    context.fillRect(x + size - bar, y, bar, size);
  },
  s(context, x, y, size) {
    const inset = Math.max(1, Math.round(size * 0.25));
    context.fillRect(x + inset, y + inset, size - 2 * inset, size - 2 * inset);
  },
  f(context, x, y, size, colours) {
    context.fillStyle = colours.failed;
    context.fillRect(x - 1, y - 1, size + 2, size + 2);
    context.strokeStyle = colours.ground;
    context.lineWidth = Math.max(1, size / 6);
    const [low, high] = [size * 0.18, size * 0.82];
    context.beginPath();
    context.moveTo(x + low, y + low);
    context.lineTo(x + high, y + high);
    context.moveTo(x + high, y + low);
    context.lineTo(x + low, y + high);
    context.stroke();
  },
  t(context, x, y, size) {
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(x + size, y);
    context.lineTo(x, y + size);
    context.fill();
  },
  w(context, x, y, size) {
    context.lineWidth = size > 8 ? 1.5 : 1;
    const inset = context.lineWidth / 2;
    context.strokeRect(x + inset, y + inset, size - 2 * inset, size - 2 * inset);
  },
  u(context, x, y, size) {
    const dot = Math.max(2, Math.round(size * 0.4));
    const inset = (size - dot) / 2;
    context.fillRect(x + inset, y + inset, dot, dot);
  },
};

/** Publishers that share a colour differ by a corner that is cut off, or two. */
function notches(context, colours, x, y, size, round) {
  const notch = Math.round(size * 0.35);
  if ((round % 4) & 1) context.clearRect(x + size - notch, y, notch, notch);
  if ((round % 4) & 2) context.clearRect(x, y + size - notch, notch, notch);
}

function shorten(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let length = text.length;
  while (length > 1 && context.measureText(`${text.slice(0, length)}…`).width > room) length -= 1;
  return `${text.slice(0, length)}…`;
}
