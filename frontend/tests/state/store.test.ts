import { beforeEach, describe, expect, it, vi } from "vitest";
import type { Deployment, DeploymentStats, Notice, Page, Stats } from "../../src/api/types";
import { type DeploymentReader, Store } from "../../src/state/store";

/** Time after which changes of the event stream are drawn. */
const DRAWN_MS = 100;

function deployment(id: string, status = "running"): Deployment {
  return { id, model: `model-${id}`, status } as Deployment;
}

function page(ids: string[], hasMore = false): Page<Deployment> {
  return { data: ids.map((id) => deployment(id)), has_more: hasMore, last_id: ids.at(-1) ?? null };
}

interface Deferred<T> {
  promise: Promise<T>;
  resolve: (value: T) => void;
  reject: (reason: Error) => void;
}

/** Keeps requests until a test answers them, in any order. */
class Reader implements DeploymentReader {
  readonly queries: Record<string, string | number>[] = [];
  readonly ids: string[] = [];
  readonly #pages: Deferred<Page<Deployment>>[] = [];
  readonly #deployments: Deferred<Deployment>[] = [];

  page = (query: Record<string, string | number>): Promise<Page<Deployment>> => {
    this.queries.push(query);
    return added(this.#pages);
  };

  get = (id: string): Promise<Deployment> => {
    this.ids.push(id);
    return added(this.#deployments);
  };

  async answerPage(answer: Page<Deployment>, index = 0): Promise<void> {
    this.#pages.splice(index, 1)[0]?.resolve(answer);
    await settled();
  }

  async failPage(): Promise<void> {
    this.#pages.shift()?.reject(new Error("unreachable"));
    await settled();
  }

  async answer(answer: Deployment): Promise<void> {
    this.#deployments.shift()?.resolve(answer);
    await settled();
  }

  async fail(): Promise<void> {
    this.#deployments.shift()?.reject(new Error("not found"));
    await settled();
  }
}

function deferred<T>(): Deferred<T> {
  let resolve!: (value: T) => void;
  let reject!: (reason: Error) => void;
  const promise = new Promise<T>((onValue, onError) => {
    resolve = onValue;
    reject = onError;
  });
  return { promise, resolve, reject };
}

function added<T>(queue: Deferred<T>[]): Promise<T> {
  const request = deferred<T>();
  queue.push(request);
  return request.promise;
}

/** Waits for all continuations of answered requests. */
async function settled(): Promise<void> {
  await vi.advanceTimersByTimeAsync(0);
}

let reader: Reader;
let store: Store;

function ids(): string[] {
  return [...store.deployments.value.keys()];
}

function statusOf(id: string): string | undefined {
  return store.deployments.value.get(id)?.status;
}

async function loaded(...pages: Page<Deployment>[]): Promise<void> {
  const load = store.load();
  for (const answer of pages) await reader.answerPage(answer);
  await load;
}

beforeEach(() => {
  vi.useFakeTimers();
  reader = new Reader();
  store = new Store(reader);
});

describe("change", () => {
  beforeEach(() => loaded(page(["d3", "d2", "d1"])));

  it("draws changes together after a pause", () => {
    const draws: string[][] = [];
    store.deployments.subscribe((now) => draws.push([...now.keys()]));
    store.change("d2", deployment("d2", "failed"));
    store.change("d4", deployment("d4"));
    store.change("d1", null);
    expect(vi.getTimerCount()).toBe(1);
    vi.advanceTimersByTime(DRAWN_MS - 1);
    expect(draws).toEqual([["d3", "d2", "d1"]]);
    vi.advanceTimersByTime(1);
    expect(draws).toEqual([
      ["d3", "d2", "d1"],
      ["d4", "d3", "d2"],
    ]);
    expect(statusOf("d2")).toBe("failed");
  });

  it("draws the last of several changes of a deployment", () => {
    store.change("d2", deployment("d2", "stopping"));
    store.change("d2", deployment("d2", "stopped"));
    store.change("d3", deployment("d3", "stopped"));
    store.change("d3", null);
    vi.advanceTimersByTime(DRAWN_MS);
    expect(ids()).toEqual(["d2", "d1"]);
    expect(statusOf("d2")).toBe("stopped");
  });

  it("keeps the place of a changed deployment and sorts new ones by ID", () => {
    store.change("d1", deployment("d1", "failed"));
    store.change("d25", deployment("d25"));
    vi.advanceTimersByTime(DRAWN_MS);
    expect(ids()).toEqual(["d3", "d25", "d2", "d1"]);
  });

  it("draws changes after each pause", () => {
    for (const status of ["starting", "running"]) {
      store.change("d1", deployment("d1", status));
      vi.advanceTimersByTime(DRAWN_MS);
      expect(statusOf("d1")).toBe(status);
    }
  });

  it("updates the views", () => {
    store.change("d4", deployment("d4"));
    vi.advanceTimersByTime(DRAWN_MS);
    expect(store.listed.value.map((one) => one.id)).toEqual(["d4", "d3", "d2", "d1"]);
    expect(store.byModel.value.get("model-d4")?.id).toBe("d4");
  });
});

describe("answered", () => {
  beforeEach(() => loaded(page(["d1"])));

  it("shows a response and returns it", async () => {
    const stopped = deployment("d1", "stopped");
    expect(await store.answered(Promise.resolve(stopped))).toBe(stopped);
    expect(store.deployments.value.get("d1")).toBe(stopped);
  });

  it("keeps a change that arrived before the response", async () => {
    const request = deferred<Deployment>();
    const answered = store.answered(request.promise);
    store.change("d1", deployment("d1", "stopped"));
    request.resolve(deployment("d1", "stopping"));
    await answered;
    expect(statusOf("d1")).toBe("stopped");
  });

  it("keeps a deletion that was drawn before the response", async () => {
    const request = deferred<Deployment>();
    const answered = store.answered(request.promise);
    store.change("d1", null);
    vi.advanceTimersByTime(DRAWN_MS);
    request.resolve(deployment("d1", "stopping"));
    await answered;
    expect(ids()).toEqual([]);
  });

  it("forgets changes after the last pending request", async () => {
    const first = deferred<Deployment>();
    const second = deferred<Deployment>();
    const requests = [store.answered(first.promise), store.answered(second.promise)];
    store.change("d1", deployment("d1", "stopped"));
    first.resolve(deployment("d1", "stopping"));
    second.resolve(deployment("d1", "stopping"));
    await Promise.all(requests);
    expect(statusOf("d1")).toBe("stopped");
    await store.answered(Promise.resolve(deployment("d1", "starting")));
    expect(statusOf("d1")).toBe("starting");
  });

  it("passes errors on", async () => {
    await expect(store.answered(Promise.reject(new Error("No.")))).rejects.toThrow("No.");
    await store.answered(Promise.resolve(deployment("d1", "stopped")));
    expect(statusOf("d1")).toBe("stopped");
  });

  it("does not show a response of another account", async () => {
    const request = deferred<Deployment>();
    const answered = store.answered(request.promise);
    store.clear();
    request.resolve(deployment("d1"));
    expect(await answered).toMatchObject({ id: "d1" });
    expect(ids()).toEqual([]);
  });
});

describe("load", () => {
  it("loads all of a short list", async () => {
    await loaded(page(["d3", "d2"], true), page(["d1"]));
    expect(reader.queries).toEqual([{ limit: 100 }, { limit: 100, after: "d2" }]);
    expect(ids()).toEqual(["d3", "d2", "d1"]);
    expect(store.reached.value).toBeNull();
    expect(store.areLoaded.value).toBe(true);
  });

  it("loads three pages of a long list", async () => {
    await loaded(page(["d9"], true), page(["d8"], true), page(["d7"], true));
    expect(ids()).toEqual(["d9", "d8", "d7"]);
    expect(store.reached.value).toBe("d7");
  });

  it("shows the first page immediately, but only the first time", async () => {
    const load = store.load();
    await reader.answerPage(page(["d2"], true));
    expect(ids()).toEqual(["d2"]);
    expect(store.areLoaded.value).toBe(false);
    await reader.answerPage(page(["d1"]));
    await load;
    const again = store.load();
    await reader.answerPage(page(["d2"], true));
    expect(ids()).toEqual(["d2", "d1"]);
    await reader.answerPage(page([]));
    await again;
    expect(ids()).toEqual(["d2"]);
  });

  it("loads as many as before", async () => {
    await loaded(page(["d9"], true), page(["d8"], true), page(["d7"], true));
    await reach("d7", page(["d6"], true));
    await reach("d6", page(["d5"], true));
    reader.queries.length = 0;
    await loaded(...["d9", "d8", "d7", "d6", "d5"].map((id) => page([id], true)));
    expect(reader.queries.map((query) => query.after)).toEqual([undefined, "d9", "d8", "d7", "d6"]);
    expect(store.reached.value).toBe("d5");
  });

  it("keeps changes that arrived meanwhile", async () => {
    const load = store.load();
    store.change("d3", deployment("d3"));
    store.change("d2", deployment("d2", "failed"));
    store.change("d1", null);
    await reader.answerPage(page(["d2", "d1"]));
    await load;
    expect(ids()).toEqual(["d3", "d2"]);
    expect(statusOf("d2")).toBe("failed");
  });

  it("keeps changes between two pages", async () => {
    const load = store.load();
    await reader.answerPage(page(["d3", "d2"], true));
    store.change("d3", null);
    vi.advanceTimersByTime(DRAWN_MS);
    await reader.answerPage(page(["d1"]));
    await load;
    expect(ids()).toEqual(["d2", "d1"]);
  });

  it("is replaced by a later call", async () => {
    const first = store.load();
    const second = store.load();
    await reader.answerPage(page(["d2"]), 1);
    await reader.answerPage(page(["d1"]));
    await Promise.all([first, second]);
    expect(ids()).toEqual(["d2"]);
  });

  it("fails without a change, and can be repeated", async () => {
    await loaded(page(["d1"]));
    const load = expect(store.load()).rejects.toThrow("unreachable");
    await reader.failPage();
    await load;
    expect(ids()).toEqual(["d1"]);
    await loaded(page(["d2"]));
    expect(ids()).toEqual(["d2"]);
  });

  it("increases the epoch if everything is reloaded", async () => {
    await loaded(page([]));
    expect(store.epoch.value).toBe(0);
    const reload = store.reload();
    await reader.answerPage(page([]));
    await reload;
    expect(store.epoch.value).toBe(1);
  });
});

async function reach(after: string, answer: Page<Deployment>): Promise<void> {
  const next = store.seek({}, after);
  await reader.answerPage(answer);
  store.reach((await next) ?? null);
}

describe("seek", () => {
  beforeEach(() => loaded(page(["d9", "d8"], true), page(["d7"], true), page(["d6"], true)));

  it("adds a page of matches and returns where the next begins", async () => {
    const next = store.seek({ search: "a", status: "failed" }, "d6");
    await reader.answerPage(page(["d4", "d2"], true));
    expect(await next).toBe("d2");
    expect(reader.queries.at(-1)).toEqual({ limit: 100, search: "a", status: "failed", after: "d6" });
    expect(ids()).toEqual(["d9", "d8", "d7", "d6", "d4", "d2"]);
    expect(store.reached.value).toBe("d6");
  });

  it("returns null after the last page", async () => {
    const next = store.seek({ search: "", status: "" });
    await reader.answerPage(page(["d1"]));
    expect(await next).toBeNull();
    expect(reader.queries.at(-1)).toEqual({ limit: 100 });
  });

  it("does not add what was deleted meanwhile", async () => {
    const next = store.seek({ search: "a" });
    store.change("d3", null);
    await reader.answerPage(page(["d3", "d2"]));
    await next;
    expect(ids()).not.toContain("d3");
    expect(ids()).toContain("d2");
  });

  it("ignores matches of another account", async () => {
    const next = store.seek({ search: "a" });
    store.clear();
    await reader.answerPage(page(["d3"]));
    expect(await next).toBeUndefined();
    expect(ids()).toEqual([]);
  });
});

describe("loadMissing", () => {
  it("loads each unknown deployment once", async () => {
    await loaded(page(["d3"]));
    store.loadMissing(["d3", "d2", "d1"]);
    store.loadMissing(["d2"]);
    expect(reader.ids).toEqual(["d2", "d1"]);
    await reader.answer(deployment("d2"));
    await reader.fail();
    expect(ids()).toEqual(["d3", "d2"]);
    store.loadMissing(["d1"]);
    expect(reader.ids).toEqual(["d2", "d1"]);
  });

  it("waits for the list", () => {
    store.loadMissing(["d1"]);
    expect(reader.ids).toEqual([]);
  });
});

describe("statistics", () => {
  function stats(rates: Record<string, number>): Stats {
    const deployments = Object.entries(rates).map(([id, rate]) => [id, { requests_per_s: rate } as DeploymentStats]);
    return { deployments: Object.fromEntries(deployments) } as Stats;
  }

  it("keeps the last 120 rates of each deployment, and none of deleted ones", () => {
    for (let rate = 0; rate < 121; rate += 1) store.addStats(stats({ d1: rate, d2: 0 }));
    expect(store.samples.value.get("d1")).toHaveLength(120);
    expect(store.samples.value.get("d1")?.at(0)).toBe(1);
    const last = stats({ d1: 7 });
    store.addStats(last);
    expect(store.samples.value.get("d1")?.slice(-2)).toEqual([120, 7]);
    expect([...store.samples.value.keys()]).toEqual(["d1"]);
    expect(store.stats.value).toBe(last);
  });

  it("keeps the last 200 notices, newest first", () => {
    for (let number = 0; number < 201; number += 1) store.addNotice({ message: String(number) } as Notice);
    expect(store.notices.value).toHaveLength(200);
    expect(store.notices.value[0]?.message).toBe("200");
    expect(store.notices.value.at(-1)?.message).toBe("1");
  });
});

describe("clear", () => {
  it("forgets the account", async () => {
    await loaded(page(["d9"], true), page(["d8"], true), page(["d7"], true));
    store.addNotice({ message: "a" } as Notice);
    store.addStats({ deployments: { d9: { requests_per_s: 1 } } } as unknown as Stats);
    store.loadMissing(["d1"]);
    store.change("d8", deployment("d8"));
    store.clear();
    vi.advanceTimersByTime(DRAWN_MS);
    expect(ids()).toEqual([]);
    expect(store.areLoaded.value).toBe(false);
    expect(store.reached.value).toBeNull();
    expect(store.stats.value).toBeNull();
    expect(store.notices.value).toEqual([]);
    expect(store.samples.value.size).toBe(0);
    await loaded(page(["e1"]));
    store.loadMissing(["d1"]);
    expect(reader.ids).toEqual(["d1", "d1"]);
  });

  it("stops a load", async () => {
    const load = store.load();
    store.clear();
    await reader.answerPage(page(["d1"]));
    await load;
    expect(ids()).toEqual([]);
    expect(store.areLoaded.value).toBe(false);
  });
});
