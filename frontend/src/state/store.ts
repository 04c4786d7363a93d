/** Shared page state, updated by the event stream. */

import { computed, type ReadonlySignal, type Signal, signal } from "@preact/signals";
import { json, list } from "../api/client";
import type { Deployment, Notice, Page, Stats } from "../api/types";

const MOST_NOTICES = 200;
const MOST_SAMPLES = 120;
const PAGE = 100;
/** Time that changes are collected before drawing. */
const GATHERED_MS = 100;
/** Pages loaded at a time. */
const EAGER = 3;

export interface Filter {
  search?: string;
  status?: string;
}

/** Reads deployments of the selected account from the server. */
export interface DeploymentReader {
  page: (query: Record<string, string | number>) => Promise<Page<Deployment>>;
  get: (id: string) => Promise<Deployment>;
}

/** A deployment's new state. Null: deleted. */
type Change = Deployment | null;

export class Store {
  /** Deployments of the selected account, newest first. */
  readonly deployments = signal<ReadonlyMap<string, Deployment>>(new Map());
  readonly areLoaded = signal(false);
  /** Only the newest deployments are loaded, down to this ID. Older ones load on demand. Null: all are loaded. */
  readonly reached = signal<string | null>(null);
  readonly stats = signal<Stats | null>(null);
  readonly notices = signal<readonly Notice[]>([]);
  /** Requests per second of the last minutes, by deployment. Data of the sparklines. */
  readonly samples = signal<ReadonlyMap<string, readonly number[]>>(new Map());
  /** Increases if events may have been missed, so that lists reload. */
  readonly epoch = signal(0);

  readonly listed = computed(() => [...this.deployments.value.values()]);
  readonly byModel = computed(() => new Map(this.listed.value.map((deployment) => [deployment.model, deployment])));

  readonly #reader: DeploymentReader;
  /** Changes not drawn yet, by ID. */
  #queue = new Map<string, Change>();
  /** Number of pending requests, whose responses may be older than changes drawn meanwhile. */
  #pending = 0;
  /** Changes drawn during pending requests, by ID. */
  readonly #newer = new Map<string, Change>();
  /** IDs requested by `loadMissing`. */
  readonly #requested = new Set<string>();
  /** Number of loads and account selections so far. */
  #turn = 0;
  /** Number of account selections so far. */
  #account = 0;

  constructor(reader: DeploymentReader) {
    this.#reader = reader;
  }

  /** Applies a change from the event stream. Changes are collected and drawn together. */
  change(id: string, change: Change): void {
    if (this.#queue.size === 0) window.setTimeout(() => this.#draw(), GATHERED_MS);
    this.#queue.set(id, change);
  }

  addNotice(notice: Notice): void {
    this.notices.value = [notice, ...this.notices.value].slice(0, MOST_NOTICES);
  }

  addStats(stats: Stats): void {
    this.stats.value = stats;
    this.samples.value = new Map(
      Object.entries(stats.deployments).map(([id, { requests_per_s }]) => [
        id,
        [...(this.samples.value.get(id) ?? []), requests_per_s].slice(-MOST_SAMPLES),
      ]),
    );
  }

  /**
   * Shows a response, unless the stream reports on the same deployment before it arrives. The order of the two is then
   * unknown, and the stream reports later changes.
   */
  answered(request: Promise<Deployment>): Promise<Deployment> {
    const account = this.#account;
    return this.#during(async () => {
      const deployment = await request;
      this.#draw();
      if (account === this.#account && !this.#newer.has(deployment.id)) this.#apply([[deployment.id, deployment]]);
      return deployment;
    });
  }

  /**
   * Loads the newest deployments: all of a short list, and at least as many as before, so that a scrolled list keeps
   * its place. Removes deleted deployments. A later call replaces an earlier one.
   */
  load(): Promise<void> {
    this.#turn += 1;
    const turn = this.#turn;
    return this.#during(async () => {
      const loaded = new Map<string, Deployment>();
      let after: string | null = null;
      for (let pages = 0; pages < EAGER || (this.areLoaded.value && (after ?? "") > this.#deepest()); pages += 1) {
        const page: Page<Deployment> = await this.#page(after ? { after } : {});
        if (turn !== this.#turn) return;
        for (const deployment of page.data) loaded.set(deployment.id, deployment);
        after = nextAfter(page);
        if (after === null) break;
        // Shows the first page immediately.
        if (!this.areLoaded.value) this.deployments.value = new Map(loaded);
      }
      this.deployments.value = sorted(changed(loaded, this.#newer));
      this.reached.value = after;
      this.areLoaded.value = true;
    });
  }

  /** Reloads everything, because events may have been missed. */
  async reload(): Promise<void> {
    await this.load();
    this.epoch.value += 1;
  }

  /**
   * Loads a page of matches after an ID. Returns the ID before the next page, or null after the last page. Returns
   * undefined if another account was selected meanwhile.
   */
  seek({ search, status }: Filter, after: string | null = null): Promise<string | null | undefined> {
    const account = this.#account;
    return this.#during(async () => {
      const page = await this.#page({
        ...(search ? { search } : {}),
        ...(status ? { status } : {}),
        ...(after ? { after } : {}),
      });
      if (account !== this.#account) return undefined;
      this.#apply(page.data.map((deployment) => [deployment.id, deployment]));
      return nextAfter(page);
    });
  }

  /** Records that all deployments down to an ID are loaded. Null: all. */
  reach(id: string | null): void {
    this.reached.value = id;
  }

  /** Loads these deployments, each once. */
  loadMissing(ids: readonly string[]): void {
    if (!this.areLoaded.value) return;
    for (const id of ids) {
      if (this.#requested.has(id) || this.deployments.value.has(id)) continue;
      this.#requested.add(id);
      this.answered(this.#reader.get(id)).catch(() => undefined);
    }
  }

  /** Forgets the data of the selected account. Ignores responses to its pending requests. */
  clear(): void {
    this.#turn += 1;
    this.#account += 1;
    this.deployments.value = new Map();
    this.areLoaded.value = false;
    this.reached.value = null;
    this.stats.value = null;
    this.notices.value = [];
    this.samples.value = new Map();
    this.#requested.clear();
    this.#newer.clear();
    this.#queue.clear();
  }

  #draw(): void {
    const changes = this.#queue;
    if (changes.size === 0) return;
    this.#queue = new Map();
    if (this.#pending > 0) for (const [id, change] of changes) this.#newer.set(id, change);
    this.#apply(changes);
  }

  #apply(changes: Iterable<[string, Change]>): void {
    const known = this.deployments.value;
    const next = changed(known, changes);
    this.deployments.value = [...next.keys()].every((id) => known.has(id)) ? next : sorted(next);
  }

  /** Runs a request and what draws its response. Meanwhile, `#newer` records changes. */
  async #during<T>(request: () => Promise<T>): Promise<T> {
    this.#pending += 1;
    try {
      return await request();
    } finally {
      this.#pending -= 1;
      if (this.#pending === 0) this.#newer.clear();
    }
  }

  /** Loads a page of deployments, corrected by changes received meanwhile. */
  async #page(query: Record<string, string>): Promise<Page<Deployment>> {
    const page = await this.#reader.page({ limit: PAGE, ...query });
    this.#draw();
    const data = page.data.flatMap((deployment) => {
      const newer = this.#newer.get(deployment.id);
      return newer === null ? [] : [newer ?? deployment];
    });
    return { ...page, data };
  }

  /** Returns the ID of the oldest deployment down to which all are loaded. */
  #deepest(): string {
    return this.reached.value ?? this.listed.value.at(-1)?.id ?? "";
  }
}

function nextAfter(page: Page<Deployment>): string | null {
  return page.has_more ? (page.last_id ?? null) : null;
}

function changed(known: ReadonlyMap<string, Deployment>, changes: Iterable<[string, Change]>): Map<string, Deployment> {
  const next = new Map(known);
  for (const [id, change] of changes) {
    if (change) next.set(id, change);
    else next.delete(id);
  }
  return next;
}

/** IDs are ordered by time. */
function sorted(deployments: ReadonlyMap<string, Deployment>): Map<string, Deployment> {
  return new Map([...deployments].sort(([a], [b]) => (a < b ? 1 : -1)));
}

/** Only the store's methods change its signals. */
type Readable<T> = { [K in keyof T]: T[K] extends Signal<infer V> ? ReadonlySignal<V> : T[K] };

export const store: Readable<Store> = new Store({
  page: (query) => list<Deployment>("/v1/deployments", query),
  get: (id) => json<Deployment>(`/v1/deployments/${id}`),
});
