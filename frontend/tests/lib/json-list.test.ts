import { describe, expect, it } from "vitest";
import { listOf } from "../../src/lib/json-list";

describe("listOf", () => {
  it("returns the list, or an empty one for an empty text", () => {
    expect(listOf('[{"a": 1}]', "The checks")).toEqual([{ a: 1 }]);
    expect(listOf("  \n", "The checks")).toEqual([]);
  });

  it.each([
    ['[\n  {"a": }\n]', "line 2, column 9"],
    ['[\n  {"a": 1}', "line 2, column 11"],
    ["[1,, 2]", "line 1, column 4"],
    ["[1, 2] 3", "line 1, column 8"],
    ['[{"a" 1}]', "line 1, column 7"],
    ['["a", x]', "line 1, column 7"],
  ])("names the place of the mistake in %j", (text, place) => {
    expect(() => listOf(text, "The checks")).toThrow(`The checks are not valid JSON, ${place}: `);
  });

  it("refuses other values", () => {
    expect(() => listOf('{"a": 1}', "The tools")).toThrow("The tools must be a JSON list");
  });
});
