/** Navigation entries that the key can access. */

import { hasAccount, isOperator, session } from "./api/session";
import { areThere as areThereNodes } from "./state/nodes";

export interface Place {
  path: string;
  name: string;
}

export function places(): Place[] {
  const found: Place[] = [];
  if (session.value?.scope === "deployment") return [{ path: "try", name: "Playground" }];
  if (hasAccount.value) {
    found.push(
      { path: "", name: "Overview" },
      { path: "try", name: "Playground" },
      { path: "artifacts", name: "Artifacts" },
      { path: "agents", name: "Agents" },
      { path: "videos", name: "Videos" },
      { path: "batches", name: "Batches" },
      { path: "files", name: "Files" },
      { path: "usage", name: "Usage" },
    );
  }
  found.push({ path: "keys", name: "Keys" }, { path: "machine", name: "Machine" });
  if (isOperator.value && areThereNodes.value) found.push({ path: "nodes", name: "Nodes" });
  if (isOperator.value) found.push({ path: "accounts", name: "Accounts" });
  return found;
}
