import { describe, expect, it } from "vitest";
import type { Deployment, Stats } from "../../src/api/types";
import { type Order, ordered, usual } from "../../src/state/order";

function deployment(model: string, status: string, bytes: number): Deployment {
  return { id: model, model, status, memory: { bytes } } as unknown as Deployment;
}

/** Newest first. */
const ROWS = [
  deployment("stopped", "stopped", 9),
  deployment("idle-b", "idle", 5),
  deployment("idle-a", "idle", 7),
  deployment("called", "ready", 3),
  deployment("broken", "failed", 1),
  deployment("quiet", "ready", 3),
  deployment("new", "starting", 3),
];
const STATS = {
  deployments: {
    called: { requests_per_s: 2, memory_bytes: 10 },
    quiet: { requests_per_s: 0, memory_bytes: 30 },
  },
} as unknown as Stats;

describe("ordered", () => {
  it.each<[Order, string[]]>([
    ["newest", ["stopped", "idle-b", "idle-a", "called", "broken", "quiet", "new"]],
    ["busy", ["called", "new", "quiet", "broken", "idle-a", "idle-b", "stopped"]],
    ["name", ["broken", "called", "idle-a", "idle-b", "new", "quiet", "stopped"]],
    ["requests", ["called", "broken", "idle-a", "idle-b", "new", "quiet", "stopped"]],
    ["memory", ["quiet", "called", "stopped", "idle-a", "idle-b", "new", "broken"]],
  ])("sorts by %s", (order, models) => {
    expect(ordered(ROWS, order, STATS).map((one) => one.model)).toEqual(models);
  });

  it("sorts before the first statistics", () => {
    expect(ordered(ROWS, "busy", null).map((one) => one.model)[0]).toBe("new");
  });

  it("keeps the server's order for lists that are loaded in parts", () => {
    expect([usual(300), usual(301)]).toEqual(["busy", "newest"]);
  });
});
