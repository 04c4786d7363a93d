/** Link to a deployment of any account. It also selects the account. */

import { page } from "../api/base";
import { choose, isOperator } from "../api/session";
import { Name } from "./parts";

export function DeploymentLink(props: { id: string; model: string | null | undefined; account: string | null }) {
  const { id, account } = props;
  const name = <Name text={props.model ?? id} />;
  if (!account || !id.startsWith("dep_")) return name;
  function onClick(event: MouseEvent): void {
    // Other tabs and windows keep their own selection.
    if (isOperator.value && !event.ctrlKey && !event.metaKey && !event.shiftKey) choose(account);
  }
  return (
    <a href={page(`deployments/${id}`)} onClick={onClick}>
      {name}
    </a>
  );
}
