/** Shared page state, updated by the event stream. */

import { computed, signal } from "@preact/signals";
import { json, list } from "../api/client";
import type { Deployment, Notice, Page, Stats } from "../api/types";

const MOST_NOTICES = 200;
const MOST_SAMPLES = 120;
const PAGE = 100;
/** Time that changes are collected before drawing. */
const GATHERED_MS = 100;
/** Pages loaded at a time. */
const EAGER = 3;

/** Deployments of the selected account, newest first. */
export const deployments = signal<ReadonlyMap<string, Deployment>>(new Map());
export const areLoaded = signal(false);
/** Only the newest deployments are loaded, down to this ID. Older ones load on demand. Null: all are loaded. */
export const reached = signal<string | null>(null);
export const stats = signal<Stats | null>(null);
export const notices = signal<readonly Notice[]>([]);
/** Requests per second of the last minutes, by deployment. Data of the sparklines. */
export const samples = signal<ReadonlyMap<string, readonly number[]>>(new Map());
/** Increases if events may have been missed, so that lists reload. */
export const epoch = signal(0);

export const listed = computed(() => [...deployments.value.values()]);
export const byModel = computed(() => new Map(listed.value.map((one) => [one.model, one])));

/** Deployments changed by events during pending requests, whose responses may be older. Null: deleted. */
const heard = new Map<string, Deployment | null>();
let reading = 0;

let found: Deployment[] = [];
let gone: string[] = [];

/** Collects changes and draws them together. A string is the ID of a deleted deployment. */
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
 * Shows a response, unless the stream reports on the same deployment before it arrives. The order of the two is then
 * unknown, and the stream reports later changes.
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

/** IDs are ordered by time. */
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

/** Loads a page of deployments, corrected by events received meanwhile. */
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
/** Number of account selections so far. */
let accounts = 0;

/** ID of the oldest deployment down to which all are loaded. */
function deepest(): string {
  return reached.value ?? listed.value.at(-1)?.id ?? "";
}

/**
 * Loads the newest deployments: all of a short list, and at least as many as before, so that a scrolled list keeps its
 * place. Removes deleted deployments. A later call replaces an earlier one.
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
      // Shows the first page immediately.
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

/** Loads and stores a page of matches after an ID. Returns the ID before the next page. */
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

/** Loads these deployments, each once. */
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
