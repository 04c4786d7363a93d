/** Names of accounts, for operators' tables. */

import { list } from "../api/client";
import { isOperator } from "../api/session";
import type { Account } from "../api/types";
import { plain } from "../lib/format";
import { useLoaded } from "./hooks";

const MOST = 100;

export type NameOf = (id: string | null | undefined) => string;

/** Returns a function from an account's ID to its name. Accounts beyond the first page keep their IDs. */
export function useAccountNames(): NameOf {
  const loaded = useLoaded(
    async () => (isOperator.value ? (await list<Account>("/v1/accounts", { limit: MOST })).data : []),
    [],
  );
  const names = new Map(loaded.value?.map((one) => [one.id, one.name]));
  return (id) => (id ? plain(names.get(id) ?? id, 64) : "–");
}
