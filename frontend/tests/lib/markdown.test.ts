import { describe, expect, it } from "vitest";
import { blocksOf } from "../../src/lib/markdown";

function textOf(...lines: string[]): string {
  return lines.join("\n");
}

describe("blocksOf", () => {
  it("skips the YAML front matter, and only that", () => {
    expect(blocksOf(textOf("---", "license: mit", "---", "text"))).toEqual([{ type: "paragraph", text: "text" }]);
    expect(blocksOf("---\r\nlicense: mit\r\n---\r\ntext")).toEqual([{ type: "paragraph", text: "text" }]);
    expect(blocksOf(textOf("text", "---", "more"))).toEqual([{ type: "paragraph", text: "text --- more" }]);
  });

  it("reads headings of six levels", () => {
    expect(blocksOf(textOf("# One", "###### Six #", "## C# and F#"))).toEqual([
      { type: "heading", level: 1, text: "One" },
      { type: "heading", level: 6, text: "Six" },
      { type: "heading", level: 2, text: "C# and F#" },
    ]);
  });

  it("takes other lines with number signs as text", () => {
    for (const line of ["#tag", "####### seven", "# "]) {
      expect(blocksOf(line)).toEqual([{ type: "paragraph", text: line }]);
    }
  });

  it("joins the lines of a paragraph, up to an empty line or another block", () => {
    expect(blocksOf(textOf("a", "b", "", "c", "# d", "e", "- f"))).toEqual([
      { type: "paragraph", text: "a b" },
      { type: "paragraph", text: "c" },
      { type: "heading", level: 1, text: "d" },
      { type: "paragraph", text: "e" },
      { type: "list", items: ["f"] },
    ]);
  });

  it("keeps code as it is", () => {
    expect(blocksOf(textOf("```python", "# no heading", "", "- no item", "```", "text"))).toEqual([
      { type: "code", text: textOf("# no heading", "", "- no item") },
      { type: "paragraph", text: "text" },
    ]);
  });

  it("ends code only at the same fence, or at the end", () => {
    expect(blocksOf(textOf("~~~~", "```", "~~~", "~~~~"))).toEqual([{ type: "code", text: textOf("```", "~~~") }]);
    expect(blocksOf(textOf("```", "a"))).toEqual([{ type: "code", text: "a" }]);
  });

  it("reads quotes", () => {
    expect(blocksOf(textOf("> a", ">b", "c"))).toEqual([
      { type: "quote", text: "a b" },
      { type: "paragraph", text: "c" },
    ]);
  });

  it("reads lists of all markers", () => {
    expect(blocksOf(textOf("- a", "* b", "+ c", "  1. d", "2) e"))).toEqual([
      { type: "list", items: ["a", "b", "c", "d", "e"] },
    ]);
  });

  it("reads tables", () => {
    expect(blocksOf(textOf("| a | b |", "|---|:-:|", "| 1 | 2 |", "| 3 |  |", "after"))).toEqual([
      {
        type: "table",
        head: ["a", "b"],
        rows: [
          ["1", "2"],
          ["3", ""],
        ],
      },
      { type: "paragraph", text: "after" },
    ]);
  });

  it("takes a line with bars as text if no delimiter row follows", () => {
    expect(blocksOf(textOf("a | b", "c | d"))).toEqual([{ type: "paragraph", text: "a | b c | d" }]);
  });

  it("ends on every text", () => {
    expect(blocksOf("")).toEqual([]);
    for (const line of ["#\u00a0", "|", ">", "-", "---", "``", "1.", "\u0000"]) {
      expect(blocksOf(textOf(line, line, "x")).length).toBeGreaterThan(0);
    }
  });
});
