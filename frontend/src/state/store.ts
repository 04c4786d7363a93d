/** What the pages show, kept true by the event stream. */

import { computed, signal } from "@preact/signals";
import { list } from "../api/client";
import type { Deployment, Notice, Stats } from "../api/types";

const MOST_NOTICES = 200;
const MOST_SAMPLES = 120;
const PAGE = 100;

/** Of the account that is looked at, newest first. */
export const deployments = signal<ReadonlyMap<string, Deployment>>(new Map());
export const areLoaded = signal(false);
export const stats = signal<Stats | null>(null);
export const notices = signal<readonly Notice[]>([]);
/** Requests a second of the last minutes, by deployment: what spark lines are drawn from. */
export const samples = signal<ReadonlyMap<string, readonly number[]>>(new Map());
/** Counts up where something may have been missed: whoever shows a list asks for it again. */
export const epoch = signal(0);

export const listed = computed(() => [...deployments.value.values()]);
export const byModel = computed(() => new Map(listed.value.map((one) => [one.model, one])));

export function upsert(found: Deployment): void {
  const known = deployments.value;
  if (known.has(found.id)) {
    const next = new Map(known);
    next.set(found.id, found);
    deployments.value = next;
  } else {
    deployments.value = new Map([[found.id, found], ...known]);
  }
}

export function remove(id: string): void {
  const next = new Map(deployments.value);
  if (next.delete(id)) deployments.value = next;
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

let turn = 0;

/** Read all deployments, page by page; what is gone meanwhile goes. A later call takes an earlier one's place. */
export async function load(): Promise<void> {
  turn += 1;
  const mine = turn;
  const found = new Map<string, Deployment>();
  let after = "";
  for (;;) {
    const page = await list<Deployment>("/v1/deployments", {
      limit: PAGE,
      ...(after ? { after } : {}),
    });
    if (mine !== turn) return;
    for (const one of page.data) found.set(one.id, one);
    if (!page.has_more || !page.last_id) break;
    after = page.last_id;
    // The first page shows at once.
    if (!areLoaded.value) deployments.value = new Map(found);
  }
  deployments.value = found;
  areLoaded.value = true;
}

export function clear(): void {
  turn += 1;
  deployments.value = new Map();
  areLoaded.value = false;
  stats.value = null;
  notices.value = [];
  samples.value = new Map();
}
