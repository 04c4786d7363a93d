/** Machines that run replicas for servers. Operators only. */

import { computed, signal } from "@preact/signals";
import { json } from "../api/client";
import type { Node, Page } from "../api/types";

/** Undefined: not known yet. */
export const nodes = signal<readonly Node[] | undefined>(undefined);
export const areThere = computed(() => (nodes.value?.length ?? 0) > 0);

export async function lookForNodes(): Promise<readonly Node[]> {
  const found = (await json<Page<Node>>("/v1/nodes")).data;
  nodes.value = found;
  return found;
}
