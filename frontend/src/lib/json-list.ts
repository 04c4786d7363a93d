/** Reads a JSON list that a person typed. */

import { ApiError } from "../api/errors";

/** Returns the list. Throws an `ApiError` that names the line and column of a mistake. */
export function listOf(text: string, name: string): unknown[] {
  const fail = (why: string) => new ApiError(why, -1, "page");
  let found: unknown;
  try {
    found = JSON.parse(text.trim() ? text : "[]");
  } catch (thrown) {
    const said = String((thrown as Error).message);
    const why = said.replace(/^JSON\.parse: | in JSON.*| at line.*|\(line.*/g, "").trim();
    const [line, column] = placeOf(said, text);
    throw fail(`${name} are not valid JSON, line ${line}, column ${column}: ${why}.`);
  }
  if (!Array.isArray(found)) throw fail(`${name} must be a JSON list: [ … ]`);
  return found;
}

/** Browsers word the place of a mistake differently, and omit it at the end of the text. */
function placeOf(said: string, text: string): [line: number, column: number] {
  const named = /line (\d+),? column (\d+)/.exec(said);
  if (named) return [Number(named[1]), Number(named[2])];
  const position = /position (\d+)/.exec(said);
  const before = text.slice(0, position ? Number(position[1]) : text.trimEnd().length).split("\n");
  return [before.length, (before.at(-1)?.length ?? 0) + 1];
}
