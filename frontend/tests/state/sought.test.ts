import { describe, expect, it } from "vitest";
import type { Deployment } from "../../src/api/types";
import { matches } from "../../src/state/sought";

const DEPLOYMENT = {
  model: "team/Sentiment",
  pipeline: "text-classification",
  status: "running",
} as unknown as Deployment;

describe("matches", () => {
  it.each([
    [{}, true],
    [{ search: "", status: "" }, true],
    [{ search: "SENTI" }, true],
    [{ search: "classif" }, true],
    [{ search: "translation" }, false],
    [{ status: "running" }, true],
    [{ status: "run" }, false],
    [{ search: "sentiment", status: "failed" }, false],
  ])("compares a deployment with %j", (filter, expected) => {
    expect(matches(DEPLOYMENT, filter)).toBe(expected);
  });
});
