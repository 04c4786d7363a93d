/** Orders of the list of deployments. */

import type { Deployment, Stats } from "../api/types";

export const ORDERS = {
  busy: "Busy first",
  newest: "Newest first",
  name: "Name",
  requests: "Requests",
  memory: "Memory",
};
export type Order = keyof typeof ORDERS;

/** Lists with more deployments are loaded in parts, newest first, and keep this order unless another one is chosen. */
const LONG = 300;

export function usual(length: number): Order {
  return length > LONG ? "newest" : "busy";
}

const STATUSES = ["starting", "stopping", "ready", "failed", "asleep", "idle", "stopped"];

function rankOf(one: Deployment, requests: number): number {
  return requests > 0 ? -1 : STATUSES.indexOf(one.status);
}

/** Sorts deployments, given newest first. Equal ones are in the order of their names. */
export function ordered(rows: readonly Deployment[], order: Order, stats: Stats | null): readonly Deployment[] {
  if (order === "newest") return rows;
  const now = (one: Deployment) => stats?.deployments[one.id];
  const requests = (one: Deployment) => now(one)?.requests_per_s ?? 0;
  const memory = (one: Deployment) => now(one)?.memory_bytes ?? 0;
  const difference = {
    busy: (a: Deployment, b: Deployment) => rankOf(a, requests(a)) - rankOf(b, requests(b)),
    name: () => 0,
    requests: (a: Deployment, b: Deployment) => requests(b) - requests(a),
    memory: (a: Deployment, b: Deployment) => memory(b) - memory(a) || b.memory.bytes - a.memory.bytes,
  }[order];
  return [...rows].sort((a, b) => difference(a, b) || (a.model < b.model ? -1 : 1));
}
