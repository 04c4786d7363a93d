/** What the pages show, kept true by the event stream. */

import { computed, signal } from "@preact/signals";
import { json, list } from "../api/client";
import type { Deployment, Notice, Page, Stats } from "../api/types";

const MOST_NOTICES = 200;
const MOST_SAMPLES = 120;
const PAGE = 100;
/** How long changes wait for others. */
const GATHERED_MS = 100;
/** Pages that are read at once. */
const EAGER = 3;

/** Of the account that is looked at, newest first. */
export const deployments = signal<ReadonlyMap<string, Deployment>>(new Map());
export const areLoaded = signal(false);
/** Of many deployments the newest are read alone, down to this id: the rest when it is looked at. Null: all are here. */
export const reached = signal<string | null>(null);
export const stats = signal<Stats | null>(null);
export const notices = signal<readonly Notice[]>([]);
/** Requests a second of the last minutes, by deployment: what spark lines are drawn from. */
export const samples = signal<ReadonlyMap<string, readonly number[]>>(new Map());
/** Counts up where something may have been missed: whoever shows a list asks for it again. */
export const epoch = signal(0);

export const listed = computed(() => [...deployments.value.values()]);
export const byModel = computed(() => new Map(listed.value.map((one) => [one.model, one])));

/** What events have told while answers were waited for: what these say of it may be older. Null: it is gone. */
const heard = new Map<string, Deployment | null>();
let reading = 0;

let found: Deployment[] = [];
let gone: string[] = [];

/** Many deployments may change at once: they are drawn together. A deleted one is told by its id. */
export function changed(one: Deployment | string): void {
  const isFirst = found.length + gone.length === 0;
  if (typeof one === "string") gone.push(one);
  else found.push(one);
  if (isFirst) window.setTimeout(draw, GATHERED_MS);
}

function draw(): void {
  const [some, others] = [found, gone];
  found = [];
  gone = [];
  if (some.length + others.length > 0) take(some, others);
}

function take(found: readonly Deployment[], gone: readonly string[]): void {
  if (reading > 0) {
    for (const one of found) heard.set(one.id, one);
    for (const id of gone) heard.set(id, null);
  }
  put(found, gone);
}

/**
 * Show what is answered, unless the stream tells something of it before the answer is here: which of them is newer
 * nobody knows then, and of what is newer still the stream will tell.
 */
export async function answered(asked: Promise<Deployment>): Promise<Deployment> {
  reading += 1;
  try {
    const one = await asked;
    draw();
    if (!heard.has(one.id)) put([one], []);
    return one;
  } finally {
    reading -= 1;
    if (reading === 0) heard.clear();
  }
}

function put(found: readonly Deployment[], gone: readonly string[]): void {
  const known = deployments.value;
  const next = new Map(known);
  for (const one of found) next.set(one.id, one);
  for (const id of gone) next.delete(id);
  deployments.value = found.every((one) => known.has(one.id)) ? next : sorted(next);
}

/** Ids are ordered by time. */
function sorted(found: ReadonlyMap<string, Deployment>): Map<string, Deployment> {
  return new Map([...found].sort(([a], [b]) => (a < b ? 1 : -1)));
}

export function note(notice: Notice): void {
  notices.value = [notice, ...notices.value].slice(0, MOST_NOTICES);
}

export function tell(now: Stats): void {
  stats.value = now;
  const next = new Map<string, readonly number[]>();
  for (const [id, one] of Object.entries(now.deployments)) {
    const before = samples.value.get(id) ?? [];
    next.set(id, [...before, one.requests_per_s].slice(-MOST_SAMPLES));
  }
  samples.value = next;
}

/** Read a page of deployments, and say what is true of those that have changed meanwhile. */
async function read(query: Record<string, string>): Promise<Page<Deployment>> {
  reading += 1;
  try {
    const page = await list<Deployment>("/v1/deployments", { limit: PAGE, ...query });
    draw();
    const data = page.data.flatMap((one) => {
      const newer = heard.get(one.id);
      return newer === undefined ? [one] : newer === null ? [] : [newer];
    });
    return { ...page, data };
  } finally {
    reading -= 1;
    if (reading === 0) heard.clear();
  }
}

let turn = 0;
/** Counts the accounts that were looked at. */
let accounts = 0;

/** The oldest deployment's id down to which all are known. */
function deepest(): string {
  return reached.value ?? listed.value.at(-1)?.id ?? "";
}

/**
 * Read the newest deployments, all of them where they are few, and as many as were known before: a list that was
 * scrolled keeps its place. Deployments that were deleted meanwhile go. A later call replaces an earlier one.
 */
export async function load(): Promise<void> {
  turn += 1;
  const mine = turn;
  const found = new Map<string, Deployment>();
  let after: string | null = null;
  reading += 1;
  try {
    for (let number = 0; number < EAGER || (areLoaded.value && (after ?? "") > deepest()); number += 1) {
      const page: Page<Deployment> = await read(after ? { after } : {});
      if (mine !== turn) return;
      for (const one of page.data) found.set(one.id, one);
      after = page.has_more ? (page.last_id ?? null) : null;
      if (after === null) break;
      // The first page shows at once.
      if (!areLoaded.value) deployments.value = new Map(found);
    }
    for (const [id, one] of heard) {
      if (one) found.set(id, one);
      else found.delete(id);
    }
    deployments.value = sorted(found);
    reached.value = after;
    areLoaded.value = true;
  } finally {
    reading -= 1;
    if (reading === 0) heard.clear();
  }
}

export interface Sought {
  search?: string;
  status?: string;
}

/** Read and keep a page of the deployments sought, behind an id. Returns the id behind which the next page begins. */
export async function seek(sought: Sought, after: string | null = null): Promise<string | null> {
  const mine = accounts;
  const page = await read({
    ...(sought.search ? { search: sought.search } : {}),
    ...(sought.status ? { status: sought.status } : {}),
    ...(after ? { after } : {}),
  });
  if (mine !== accounts) return null;
  put(page.data, []);
  return page.has_more ? (page.last_id ?? null) : null;
}

const wanted = new Set<string>();

/** Have these known, each asked for once. */
export function want(ids: readonly string[]): void {
  for (const id of ids) {
    if (wanted.has(id) || deployments.value.has(id) || !areLoaded.value) continue;
    wanted.add(id);
    answered(json<Deployment>(`/v1/deployments/${id}`)).catch(() => undefined);
  }
}

export function clear(): void {
  turn += 1;
  accounts += 1;
  deployments.value = new Map();
  areLoaded.value = false;
  reached.value = null;
  wanted.clear();
  heard.clear();
  found = [];
  gone = [];
  stats.value = null;
  notices.value = [];
  samples.value = new Map();
}
