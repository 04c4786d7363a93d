import { describe, expect, it } from "vitest";
import { found } from "../../src/lib/matching";

function names(all: [name: string, note: string, words?: string][], wanted: string): string[] {
  const entries = all.map(([name, note, words = ""]) => ({ name, note, words }));
  return found(entries, wanted).map((one) => one.name);
}

const ALL: [string, string, string?][] = [
  ["consent-form", "Deployment · text-classification"],
  ["presented", "Deployment · summarization"],
  ["my sentiment", "Deployment · text-classification"],
  ["sentiment", "Deployment · text-classification"],
  ["some-entities", "Deployment · token-classification"],
  ["API reference", "Documentation", "docs openapi"],
];

describe("found", () => {
  it("lists all entries without a text", () => {
    expect(names(ALL, " ")).toHaveLength(ALL.length);
  });

  it("prefers the start of a name, then of a word, then any place", () => {
    expect(names(ALL, "SENT")).toEqual(["sentiment", "my sentiment", "consent-form", "presented"]);
  });

  it("finds notes and other words after names", () => {
    expect(names(ALL, "docs")).toEqual(["API reference"]);
    expect(names(ALL, "summar")).toEqual(["presented"]);
  });

  it("requires every word", () => {
    expect(names(ALL, "classification my")).toEqual(["my sentiment"]);
  });

  it("falls back to letters in order", () => {
    expect(names(ALL, "smnt")).toEqual(["my sentiment", "sentiment", "some-entities"]);
    expect(names(ALL, "xyz")).toEqual([]);
  });
});
