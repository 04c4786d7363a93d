/** Accounts page for operators: accounts, grants, prices. */

import { useState } from "preact/hooks";
import { useLocation } from "preact-iso";
import { page } from "../api/base";
import { api, must } from "../api/client";
import { accountsChanged, choose, chosenAccount, isOperator } from "../api/session";
import type { Account, Price } from "../api/types";
import { ago, credits, moment, plain } from "../lib/format";
import { useActing } from "../ui/hooks";
import { usePaged } from "../ui/paged";
import { Button, Card, Dialog, Empty, ErrorNote, Field, Name, PageHead } from "../ui/parts";
import { Table } from "../ui/table";

const MICRO = 1_000_000;

export default function Accounts() {
  const { route } = useLocation();
  const accounts = usePaged<Account>("/v1/accounts");
  const [isMaking, setMaking] = useState(false);
  const [granted, setGranted] = useState<Account | null>(null);
  const [deleted, setDeleted] = useState<Account | null>(null);
  if (!isOperator.value) {
    return (
      <>
        <PageHead title="Accounts" />
        <Empty title="Only operators can see this page." />
      </>
    );
  }
  return (
    <>
      <PageHead title="Accounts">
        <Button kind="primary" onClick={() => setMaking(true)}>
          New account
        </Button>
      </PageHead>
      <Card>
        {accounts.frame(
          <Table
            label="Accounts"
            rows={accounts.rows}
            keyOf={(one) => one.id}
            columns={[
              { name: "Name", cell: (one) => <Name text={one.name} /> },
              { name: "ID", cell: (one) => <code>{one.id}</code> },
              {
                name: "Custom limits",
                cell: (one) =>
                  Object.entries(one.quotas)
                    .map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`)
                    .join(", ") || "none",
              },
              { name: "Created", cell: (one) => ago(one.created_at) },
              {
                name: "Actions",
                isQuiet: true,
                cell: (one) => (
                  <span class="actions">
                    <Button
                      class="small"
                      onClick={() => {
                        choose(one.id);
                        route(page());
                      }}
                    >
                      Open
                    </Button>
                    <Button class="small" onClick={() => setGranted(one)}>
                      Grant
                    </Button>
                    <Button kind="quiet" class="small" onClick={() => setDeleted(one)}>
                      Delete
                    </Button>
                  </span>
                ),
              },
            ]}
          />,
          <Empty title="No accounts yet." />,
        )}
      </Card>
      <Prices />
      {isMaking && <NewAccount onClose={() => setMaking(false)} onDone={accounts.reload} />}
      {granted && <Grant account={granted} onClose={() => setGranted(null)} />}
      {deleted && <Delete account={deleted} onClose={() => setDeleted(null)} onDone={accounts.reload} />}
    </>
  );
}

function NewAccount({ onClose, onDone }: { onClose: () => void; onDone: () => void }) {
  const [name, setName] = useState("");
  const acting = useActing();
  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    const isDone = await acting.run(async () => {
      await must(api.POST("/v1/accounts", { body: { name: name.trim() } }));
    });
    if (!isDone) return;
    accountsChanged.value += 1;
    onDone();
    onClose();
  }
  return (
    <Dialog title="New account" onClose={onClose}>
      <form class="stack" onSubmit={(event) => void submit(event)}>
        <Field label="Name">
          {(id) => (
            <input
              id={id}
              type="text"
              required
              maxLength={128}
              value={name}
              onInput={(event) => setName(event.currentTarget.value)}
            />
          )}
        </Field>
        <ErrorNote error={acting.error} />
        <div class="actions end">
          <Button kind="primary" type="submit" isBusy={acting.isBusy} disabled={!name.trim()}>
            Create
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

function Delete({ account, onClose, onDone }: { account: Account; onClose: () => void; onDone: () => void }) {
  const [typed, setTyped] = useState("");
  const acting = useActing();
  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    const isDone = await acting.run(async () => {
      await must(api.DELETE("/v1/accounts/{account_id}", { params: { path: { account_id: account.id } } }));
    });
    if (!isDone) return;
    if (chosenAccount.value === account.id) choose(null);
    accountsChanged.value += 1;
    onDone();
    onClose();
  }
  return (
    <Dialog title={`Delete ${plain(account.name, 64)}?`} onClose={onClose}>
      <form class="stack" onSubmit={(event) => void submit(event)}>
        <p>This erases its models, deployments, keys, agents, runs, files and usage. This cannot be undone.</p>
        <Field label="Type the account name to confirm">
          {(id) => <input id={id} type="text" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />}
        </Field>
        <ErrorNote error={acting.error} />
        <div class="actions end">
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="danger" type="submit" isBusy={acting.isBusy} disabled={typed.trim() !== account.name.trim()}>
            Delete account
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

function Grant({ account, onClose }: { account: Account; onClose: () => void }) {
  const [amount, setAmount] = useState("");
  const [note, setNote] = useState("");
  const acting = useActing();
  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    const isDone = await acting.run(async () => {
      const microcredits = Math.round(Number(amount) * MICRO);
      const body = {
        amount_microcredits: microcredits,
        correction: microcredits < 0,
        ...(note.trim() ? { note: note.trim() } : {}),
      };
      await must(api.POST("/v1/accounts/{account_id}/credits", { params: { path: { account_id: account.id } }, body }));
    });
    if (isDone) onClose();
  }
  return (
    <Dialog title={`Credits for ${plain(account.name, 60)}`} onClose={onClose}>
      <form class="stack" onSubmit={(event) => void submit(event)}>
        <Field label="Credits" hint="A negative amount takes credits back.">
          {(id, hint) => (
            <input
              id={id}
              type="number"
              step="any"
              min={-1_000_000_000}
              max={1_000_000_000}
              required
              aria-describedby={hint}
              value={amount}
              onInput={(event) => setAmount(event.currentTarget.value)}
            />
          )}
        </Field>
        <Field label="Note">
          {(id) => (
            <input
              id={id}
              type="text"
              maxLength={500}
              value={note}
              onInput={(event) => setNote(event.currentTarget.value)}
            />
          )}
        </Field>
        <ErrorNote error={acting.error} />
        <div class="actions end">
          <Button kind="primary" type="submit" isBusy={acting.isBusy} disabled={!Number(amount)}>
            Grant
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

function Prices() {
  const prices = usePaged<Price>("/v1/prices");
  const [memory, setMemory] = useState("");
  const [storage, setStorage] = useState("");
  const acting = useActing();
  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    await acting.run(async () => {
      const body = {
        memory_microcredits_per_gib_hour: Math.round(Number(memory) * MICRO),
        storage_microcredits_per_gib_month: Math.round(Number(storage) * MICRO),
      };
      await must(api.POST("/v1/prices", { body }));
      setMemory("");
      setStorage("");
      prices.reload();
    });
  }
  const field = (label: string, value: string, set: (value: string) => void) => (
    <Field label={label}>
      {(id) => (
        <input
          id={id}
          type="number"
          min={0}
          max={1000}
          step="any"
          required
          value={value}
          onInput={(event) => set(event.currentTarget.value)}
        />
      )}
    </Field>
  );
  return (
    <Card title="Prices">
      {prices.frame(
        <ul class="events">
          {prices.rows?.map((one) => (
            <li key={one.id}>
              <span class="grow">
                {credits(one.memory_microcredits_per_gib_hour)} per GiB-hour of memory (
                {credits(one.flex_microcredits_per_gib_hour)} during background work),{" "}
                {credits(one.storage_microcredits_per_gib_month)} per GiB-month of storage
              </span>
              <span class="note">from {moment(one.effective_from)}</span>
            </li>
          ))}
        </ul>,
        <Empty title="No prices yet." />,
      )}
      <form class="stack" onSubmit={(event) => void submit(event)}>
        <div class="fields">
          {field("Credits per GiB-hour of memory", memory, setMemory)}
          {field("Credits per GiB-month of storage", storage, setStorage)}
        </div>
        <p class="note">New prices apply from the next full hour. 1 GiB is 1.074 GB.</p>
        <ErrorNote error={acting.error} />
        <div class="actions">
          <Button type="submit" isBusy={acting.isBusy} disabled={!memory || !storage}>
            Set prices
          </Button>
        </div>
      </form>
    </Card>
  );
}
