/**
 * How values are written. What is not known is an en dash, and never 0. Ids, pids and positions have no separators.
 *
 * Values are what others have told, so each may be anything: what is no number where one is due is not known.
 */
import { writeJson } from "./json.js";

export const UNKNOWN = "–";

const THIN = "\u202f";
const BYTES = ["B", "KB", "MB", "GB", "TB", "PB"];
const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

export function known(value) {
  return value !== null && value !== undefined && !Number.isNaN(value);
}

/** A count, with thin spaces between the thousands. */
export function count(value) {
  if (numeric(value) === null) return UNKNOWN;
  return grouped(String(typeof value === "bigint" ? value : Math.round(value)));
}

/** A measured number, with as many digits as are worth reading. */
export function measure(told) {
  const value = numeric(told);
  if (value === null) return UNKNOWN;
  const size = Math.abs(value);
  const digits = Number.isInteger(value) || size >= 100 ? 0 : size >= 10 ? 1 : 2;
  const [whole, part] = value.toFixed(digits).split(".");
  return grouped(whole) + (part ? `.${part}` : "");
}

export function rate(value, unit = "/s") {
  return numeric(value) !== null ? `${measure(value)}${THIN}${unit}` : UNKNOWN;
}

export function bytes(told) {
  let value = numeric(told);
  if (value === null) return UNKNOWN;
  let power = 0;
  while (value >= 999.5 && power < BYTES.length - 1) {
    value /= 1000;
    power += 1;
  }
  return `${measure(value)}${THIN}${BYTES[power]}`;
}

/** Seconds, in the two largest units: 1.2 s, 36 s, 4m 12s, 2h 05m, 3d 4h. */
export function duration(told) {
  const seconds = numeric(told);
  if (seconds === null) return UNKNOWN;
  if (seconds < 10) return `${Number.isInteger(seconds) ? seconds : seconds.toFixed(1)}${THIN}s`;
  if (seconds < MINUTE) return `${Math.round(seconds)}${THIN}s`;
  const whole = Math.round(seconds);
  if (whole < HOUR) return pair(whole, MINUTE, "m", 1, "s");
  if (whole < DAY) return pair(whole, HOUR, "h", MINUTE, "m");
  return pair(whole, DAY, "d", HOUR, "h");
}

/** How long ago this was. */
export function ago(ms, now) {
  const seconds = Math.round((now - ms) / 1000);
  if (Math.abs(seconds) < 2) return "now";
  if (seconds < 0) return `in ${largest(-seconds)}`;
  return `${largest(seconds)} ago`;
}

/** A position as `tidings flows list` prints it: 7, or 7.2 inside a transaction. */
export function position(value) {
  if (!known(value)) return UNKNOWN;
  if (!Array.isArray(value)) return inline(value);
  return (value.length === 2 && !value[1] ? value.slice(0, 1) : value).map(inline).join(".");
}

/** An id, a pid, a name: as it is. */
export function plain(value) {
  return known(value) && value !== "" ? inline(value) : UNKNOWN;
}

/** Any JSON value on one line. */
export function inline(value) {
  if (!known(value)) return UNKNOWN;
  return typeof value === "object" ? writeJson(value) : String(value);
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** The number that this is, if it is one. */
function numeric(value) {
  const found = typeof value === "bigint" ? Number(value) : value;
  return Number.isFinite(found) ? found : null;
}

function pair(seconds, large, largeUnit, small, smallUnit) {
  const rest = String(Math.floor((seconds % large) / small)).padStart(2, "0");
  return `${grouped(String(Math.floor(seconds / large)))}${largeUnit} ${rest}${smallUnit}`;
}

function largest(seconds) {
  if (seconds < MINUTE) return `${seconds}${THIN}s`;
  if (seconds < HOUR) return `${Math.floor(seconds / MINUTE)}${THIN}min`;
  if (seconds < DAY) return `${Math.floor(seconds / HOUR)}${THIN}h`;
  return `${grouped(String(Math.floor(seconds / DAY)))}${THIN}d`;
}

function grouped(digits) {
  return digits.replace(/\B(?=(\d{3})+(?!\d))/g, THIN);
}
