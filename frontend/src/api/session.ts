/** The signed-in session. Its secret is in an HttpOnly cookie. */

import { computed, signal } from "@preact/signals";
import { ROOT } from "./base";
import { ApiError, unreachable } from "./errors";
import type { Session } from "./types";

const ADDRESS = `${ROOT}console/session`;
const CHOSEN = "stoker.account";

/** Undefined: not known yet. Null: signed out. */
export const session = signal<Session | null | undefined>(undefined);
/** Why the session ended. */
export const endedBecause = signal("");
/** Account that an operator has selected. */
export const chosenAccount = signal<string | null>(sessionStorage.getItem(CHOSEN) || null);

/** Increases when an account is created or changed here, so that account lists reload. */
export const accountsChanged = signal(0);

export const isOperator = computed(() => session.value?.scope === "operator");
/** Whether the key can read deployments, artifacts and usage. */
export const hasAccount = computed(
  () => session.value?.scope === "account" || (isOperator.value && chosenAccount.value !== null),
);

export function choose(account: string | null): void {
  // Empty: no account, by choice.
  sessionStorage.setItem(CHOSEN, account ?? "");
  chosenAccount.value = account;
}

/** Whether an operator has selected an account, or none, since the sign-in. */
export function hasChosen(): boolean {
  return sessionStorage.getItem(CHOSEN) !== null;
}

function forgetChoice(): void {
  sessionStorage.removeItem(CHOSEN);
  chosenAccount.value = null;
}

/** Headers of a call: CSRF proof and selected account. */
export function headersOf(method: string): Record<string, string> {
  const found: Record<string, string> = {};
  const now = session.value;
  if (now && method !== "GET" && method !== "HEAD") found["x-csrf-token"] = now.csrf;
  if (isOperator.value && chosenAccount.value) found["x-stoker-account"] = chosenAccount.value;
  return found;
}

async function read(response: Response): Promise<Session> {
  const body: unknown = await response.json().catch(() => null);
  if (!response.ok) throw ApiError.of(response, body);
  return body as Session;
}

/** Loads the session. Throws if the server is not reachable. */
export async function look(): Promise<void> {
  const response = await fetch(ADDRESS, { cache: "no-store" }).catch(() => {
    throw unreachable();
  });
  if (response.status === 401) {
    end(session.value ? "Your session has ended. Its API key may have been revoked." : "");
    return;
  }
  session.value = await read(response);
}

export async function signIn(by: { key: string } | { link: string }): Promise<void> {
  const response = await fetch(ADDRESS, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(by),
  }).catch(() => {
    throw unreachable();
  });
  const found = await read(response);
  endedBecause.value = "";
  session.value = found;
}

export async function signOut(): Promise<void> {
  await fetch(ADDRESS, { method: "DELETE", headers: headersOf("DELETE") }).catch(() => {
    throw unreachable();
  });
  forgetChoice();
  end("");
}

export function end(because: string): void {
  endedBecause.value = because;
  session.value = null;
}
