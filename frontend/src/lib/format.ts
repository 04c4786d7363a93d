/** Formats numbers, times and sizes for display. */

const UNITS = ["B", "KB", "MB", "GB", "TB", "PB"];

export function bytes(value: number | null | undefined): string {
  if (value == null) return "–";
  let size = value;
  let unit = 0;
  while (Math.round(size) >= 1000 && unit < UNITS.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${size >= 99.95 || unit === 0 ? Math.round(size) : size.toFixed(1)} ${UNITS[unit]}`;
}

export function count(value: number | null | undefined): string {
  return value == null ? "–" : Math.round(value).toLocaleString("en");
}

export function rate(value: number | null | undefined): string {
  if (value == null) return "–";
  if (value === 0) return "0/s";
  return `${value >= 9.95 ? Math.round(value) : value.toFixed(1)}/s`;
}

export function ms(value: number | null | undefined): string {
  if (value == null) return "–";
  if (value >= 999.5) return `${(value / 1000).toFixed(1)} s`;
  return `${value >= 9.95 ? Math.round(value) : value.toFixed(1)} ms`;
}

export function percent(value: number | null | undefined, digits = 0): string {
  return value == null ? "–" : `${(100 * value).toFixed(digits)} %`;
}

export function score(value: number): string {
  return value >= 0.9995 && value < 1 ? "> 0.999" : value.toFixed(3);
}

/** Formats microcredits as credits. */
export function credits(microcredits: number): string {
  const value = microcredits / 1e6;
  if (value === 0) return "0";
  const size = Math.abs(value);
  const digits = size >= 100 ? 0 : size >= 1 ? 2 : size >= 0.0001 ? 4 : 6;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

const STEPS: [number, string][] = [
  [86_400, "d"],
  [3600, "h"],
  [60, "min"],
  [1, "s"],
];

export function duration(seconds: number): string {
  const [size, name] = STEPS.find(([size]) => seconds >= size) ?? [1, "s"];
  return `${Math.round(seconds / size)} ${name}`;
}

export function date(value: string | number | null | undefined): Date | null {
  if (value == null) return null;
  const found = new Date(typeof value === "number" ? value * 1000 : value);
  return Number.isNaN(found.getTime()) ? null : found;
}

export function ago(value: string | number | null | undefined, now = Date.now()): string {
  const found = date(value);
  if (!found) return "never";
  const seconds = (now - found.getTime()) / 1000;
  if (seconds < -1) return `in ${duration(-seconds)}`;
  return seconds < 2 ? "now" : `${duration(seconds)} ago`;
}

export function moment(value: string | number | null | undefined): string {
  const found = date(value);
  return found ? found.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" }) : "–";
}

export function clock(value: string | number | null | undefined): string {
  return date(value)?.toLocaleTimeString("en-GB") ?? "–";
}

/** Formats a number with its noun, such as `1 step` or `2 steps`. */
export function many(value: number, noun: string): string {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

export function day(value: string | number | null | undefined): string {
  return date(value)?.toLocaleDateString("en-GB", { dateStyle: "medium" }) ?? "–";
}

/** Returns the end of an ID, which distinguishes objects of one name. */
export function shortId(id: string): string {
  return `…${id.slice(-6)}`;
}

/** Bidirectional marks and control characters. */
const HIDDEN =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: The expression finds control characters.
  /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

/** Returns untrusted text without characters that reorder or hide nearby text. */
export function plain(text: string, most = 256): string {
  const cut = text.length > most ? `${text.slice(0, most)}…` : text;
  return cut.replace(HIDDEN, "\ufffd");
}
