/** Colour theme: system, light or dark. */

import { signal } from "@preact/signals";

const KEY = "stoker.theme";
export type Theme = "system" | "light" | "dark";

function stored(): Theme {
  const found = localStorage.getItem(KEY);
  return found === "light" || found === "dark" ? found : "system";
}

export const theme = signal<Theme>(stored());

export function apply(chosen: Theme): void {
  theme.value = chosen;
  if (chosen === "system") {
    localStorage.removeItem(KEY);
    delete document.documentElement.dataset.theme;
  } else {
    localStorage.setItem(KEY, chosen);
    document.documentElement.dataset.theme = chosen;
  }
  window.dispatchEvent(new Event("stoker:theme"));
}

const NEXT: Record<Theme, Theme> = { system: "light", light: "dark", dark: "system" };

export function next(): void {
  apply(NEXT[theme.value]);
}
