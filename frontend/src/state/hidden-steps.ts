/** Deployment whose first steps are hidden, because the user hid them or has taken all of them. */

import { signal } from "@preact/signals";

const KEY = "stoker.hidden-steps";

export const hiddenSteps = signal<string | null>(localStorage.getItem(KEY));

export function hideSteps(id: string): void {
  localStorage.setItem(KEY, id);
  hiddenSteps.value = id;
}
