/** Reads a JSON list that a person typed. */

import { ApiError } from "../api/errors";

const TOKEN =
  /\s*([{}[\],:]|"(?:[^"\\\n]|\\(?:["\\/bfnrt]|u[\da-fA-F]{4}))*"|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null)/y;

/** Returns the list. Throws an `ApiError` that names the line and column of a mistake. */
export function listOf(text: string, name: string): unknown[] {
  const fail = (why: string) => new ApiError(why, -1, "page");
  let found: unknown;
  try {
    found = JSON.parse(text.trim() ? text : "[]");
  } catch {
    // Not all browsers name the place.
    const at = mistakeIn(text);
    const before = text.slice(0, at).split("\n");
    const column = (before.at(-1)?.length ?? 0) + 1;
    const why = at < text.trimEnd().length ? `unexpected '${text.charAt(at)}'` : "the text ends too early";
    throw fail(`${name} are not valid JSON, line ${before.length}, column ${column}: ${why}.`);
  }
  if (!Array.isArray(found)) throw fail(`${name} must be a JSON list: [ … ]`);
  return found;
}

/** Returns the index of the first character that is not valid, or the end of the text. */
function mistakeIn(text: string): number {
  const open: string[] = [];
  // What may come next: v is a value, k is a key, others are the character itself.
  let next = "v";
  let end = 0;
  const after = () => (open.length > 0 ? `,${open.at(-1)}` : "");
  TOKEN.lastIndex = 0;
  for (;;) {
    const token = TOKEN.exec(text)?.[1];
    if (token === undefined) break;
    if (next.includes("v") && !"}],:".includes(token)) {
      if (token === "{" || token === "[") open.push(token === "{" ? "}" : "]");
      next = token === "{" ? "k}" : token === "[" ? "v]" : after();
    } else if (next.includes("k") && token.startsWith('"')) {
      next = ":";
    } else if ("}],:".includes(token) && next.includes(token)) {
      if (token === "}" || token === "]") open.pop();
      next = token === ":" ? "v" : token !== "," ? after() : open.at(-1) === "}" ? "k" : "v";
    } else break;
    end = TOKEN.lastIndex;
  }
  const rest = text.slice(end).search(/\S/);
  return rest < 0 ? text.trimEnd().length : end + rest;
}
