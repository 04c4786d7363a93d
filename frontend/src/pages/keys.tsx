/** Keys page: create, rotate and revoke API keys. */

import { useState } from "preact/hooks";
import { api, must } from "../api/client";
import { hasAccount, isOperator, session } from "../api/session";
import type { Key, KeyWithSecret } from "../api/types";
import { ago, count, moment, plain } from "../lib/format";
import { store } from "../state/store";
import { useActing } from "../ui/hooks";
import { usePaged } from "../ui/paged";
import { Button, Card, Confirm, CopyButton, Dialog, Empty, ErrorNote, PageHead, Skeleton } from "../ui/parts";
import { Table } from "../ui/table";
import { NewKey } from "./new-key";

export default function Keys() {
  const keys = usePaged<Key>("/v1/api-keys");
  const [isMaking, setMaking] = useState(false);
  const [made, setMade] = useState<KeyWithSecret | null>(null);
  const [rotated, setRotated] = useState<Key | null>(null);
  const [revoked, setRevoked] = useState<Key | null>(null);
  const acting = useActing();
  // Loads deployments first, so that IDs do not turn into names and move rows.
  const areNamed = store.areLoaded.value || !keys.rows?.some((one) => one.deployment_ids.length > 0);

  if (session.value?.scope === "deployment") {
    return (
      <>
        <PageHead title="Keys" />
        <Empty title="This key can only call models." />
      </>
    );
  }
  const rotate = (key: Key) =>
    acting.run(async () => {
      const params = { path: { key_id: key.id } };
      setMade(await must(api.POST("/v1/api-keys/{key_id}/rotate", { params, body: {} })));
      setRotated(null);
      keys.reload();
    });
  const revoke = (key: Key) =>
    acting.run(async () => {
      await must(api.DELETE("/v1/api-keys/{key_id}", { params: { path: { key_id: key.id } } }));
      setRevoked(null);
      keys.reload();
    });

  return (
    <>
      <PageHead title="Keys" note="Create a key for each caller, limited to the deployments that it needs.">
        <Button kind="primary" onClick={() => setMaking(true)}>
          New key
        </Button>
      </PageHead>
      <Card>
        {areNamed ? (
          keys.frame(
            <Table
              label="Keys"
              rows={keys.rows}
              keyOf={(one) => one.id}
              columns={[
                { name: "Name", cell: (one) => <bdi>{plain(one.name ?? "–", 80)}</bdi> },
                { name: "Key", cell: (one) => <code>sk-{one.public_id}-…</code> },
                { name: "Access", cell: mayDo },
                { name: "Limits per minute", cell: limits },
                {
                  name: "Last used",
                  cell: (one) => <span title={moment(one.last_used_at)}>{ago(one.last_used_at)}</span>,
                },
                {
                  name: "Expires",
                  cell: (one) => (
                    <span title={moment(one.expires_at)}>{one.expires_at ? ago(one.expires_at) : "never"}</span>
                  ),
                },
                {
                  name: "Actions",
                  isQuiet: true,
                  cell: (one) => (
                    <span class="actions">
                      <Button class="small" onClick={() => setRotated(one)} aria-label={`Rotate ${one.public_id}`}>
                        Rotate
                      </Button>
                      <Button
                        kind="quiet"
                        class="small"
                        onClick={() => setRevoked(one)}
                        aria-label={`Revoke ${one.public_id}`}
                      >
                        Revoke
                      </Button>
                    </span>
                  ),
                },
              ]}
            />,
            <Empty title="No keys yet." />,
          )
        ) : (
          <Skeleton rows={5} />
        )}
      </Card>
      {isMaking && (
        <NewKey
          scopes={[...(hasAccount.value ? ["deployment", "account"] : []), ...(isOperator.value ? ["operator"] : [])]}
          onClose={() => setMaking(false)}
          onMade={(key) => {
            setMaking(false);
            setMade(key);
            keys.reload();
          }}
        />
      )}
      {made && <Shown made={made} onClose={() => setMade(null)} />}
      {rotated && (
        <Confirm
          title={`Rotate ${plain(rotated.name ?? rotated.public_id, 64)}?`}
          action="Rotate key"
          isBusy={acting.isBusy}
          error={acting.error}
          onYes={() => void rotate(rotated)}
          onClose={() => setRotated(null)}
        >
          <p>The old secret works for 24 more hours, so that callers can switch.</p>
        </Confirm>
      )}
      {revoked && (
        <Confirm
          title={`Revoke ${plain(revoked.name ?? revoked.public_id, 64)}?`}
          action="Revoke key"
          isBusy={acting.isBusy}
          error={acting.error}
          onYes={() => void revoke(revoked)}
          onClose={() => setRevoked(null)}
        >
          <p>The key stops working immediately. Console sessions signed in with it end. This cannot be undone.</p>
        </Confirm>
      )}
    </>
  );
}

function mayDo(key: Key): string {
  if (key.scope !== "deployment") return key.scope === "operator" ? "all accounts" : "full account";
  const names = key.deployment_ids.map((id) => store.deployments.value.get(id)?.model ?? id);
  return `${names.slice(0, 3).join(", ")}${names.length > 3 ? ` and ${names.length - 3} more` : ""}`;
}

function limits(key: Key): string {
  const found = [
    key.requests_per_minute !== null && `${count(key.requests_per_minute)} requests`,
    key.tokens_per_minute !== null && `${count(key.tokens_per_minute)} tokens`,
  ].filter(Boolean);
  return found.join(", ") || "none";
}

function Shown({ made, onClose }: { made: KeyWithSecret; onClose: () => void }) {
  return (
    <Dialog title="Save your key" onClose={onClose}>
      <p>
        <strong>This key is shown only once.</strong> Copy it now, and store it like a password.
      </p>
      <pre class="code-block" tabIndex={0} aria-label="New key">
        {made.key}
      </pre>
      <div class="actions end">
        <CopyButton text={made.key} label="Copy key" />
        <Button kind="primary" onClick={onClose}>
          Done
        </Button>
      </div>
      <ErrorNote error={null} />
    </Dialog>
  );
}
