/** Grants and charges. The charges of a day are one row for memory and one for storage. */

import { useEffect, useState } from "preact/hooks";
import { list } from "../../api/client";
import type { Transfer } from "../../api/types";
import { count, credits, day, moment, plain } from "../../lib/format";
import { useActing } from "../../ui/hooks";
import { Button, Card, Empty, ErrorNote, Skeleton } from "../../ui/parts";
import { Table } from "../../ui/table";

const PAGE = 100;
/** Pages read at a time: an account with many artifacts has a charge for each one every hour. */
const MOST_PAGES = 10;
const FEWEST_DAYS = 3;
const CHARGES = new Set(["memory", "storage"]);
const KINDS: Record<string, string> = {
  opening: "Opening balance",
  grant: "Grant",
  correction: "Correction",
  memory: "Memory",
  storage: "Storage",
};

interface Folded {
  key: string;
  first: Transfer;
  charges: number;
  microcredits: number;
}

export function folded(transfers: readonly Transfer[]): Folded[] {
  const found = new Map<string, Folded>();
  for (const one of transfers) {
    const key = CHARGES.has(one.kind) ? `${one.kind} ${day(one.created_at)}` : one.id;
    const known = found.get(key) ?? { key, first: one, charges: 0, microcredits: 0 };
    found.set(key, { ...known, charges: known.charges + 1, microcredits: known.microcredits + one.microcredits });
  }
  return [...found.values()];
}

export function Transfers() {
  const [rows, setRows] = useState<Transfer[]>([]);
  const [after, setAfter] = useState<string | null>("");
  const acting = useActing();

  const more = () =>
    acting.run(async () => {
      const fresh: Transfer[] = [];
      let next = after;
      for (let number = 0; number < MOST_PAGES && next !== null; number += 1) {
        const query: Record<string, string | number> = { limit: PAGE, ...(next ? { after: next } : {}) };
        const found = await list<Transfer>("/v1/credits/transfers", query);
        fresh.push(...found.data);
        next = found.has_more ? (found.last_id ?? null) : null;
        if (new Set(fresh.map((one) => day(one.created_at))).size > FEWEST_DAYS) break;
      }
      setRows([...rows, ...fresh]);
      setAfter(next);
    });
  // biome-ignore lint/correctness/useExhaustiveDependencies: The first rows are read once.
  useEffect(() => void more(), []);

  const all = folded(rows);
  const oldest = day(rows.at(-1)?.created_at);
  // Not all charges of the oldest day are here.
  const isPartial = (one: Folded) => after !== null && one.charges > 0 && day(one.first.created_at) === oldest;
  const shown = all.filter((one) => !(CHARGES.has(one.first.kind) && isPartial(one)));
  return (
    <Card title="Grants and charges">
      <ErrorNote error={acting.error} />
      {rows.length === 0 && acting.isBusy && <Skeleton rows={4} />}
      {rows.length === 0 && !acting.isBusy && after === null && <Empty title="No grants or charges yet." />}
      {rows.length > 0 && (
        <Table
          label="Grants and charges"
          rows={shown.length > 0 ? shown : all}
          keyOf={(one) => one.key}
          columns={[
            {
              name: "Date",
              cell: ({ first }) => <span title={moment(first.created_at)}>{day(first.created_at)}</span>,
            },
            {
              name: "Type",
              cell: ({ first, charges }) => (
                <span>
                  {KINDS[first.kind] ?? first.kind}
                  {charges > 1 && <span class="note"> ({count(charges)} charges)</span>}
                  {first.note && !CHARGES.has(first.kind) && <bdi class="note block">{plain(first.note, 200)}</bdi>}
                </span>
              ),
            },
            { name: "Credits", isNumber: true, cell: (one) => credits(one.microcredits) },
          ]}
        />
      )}
      {after !== null && rows.length > 0 && (
        <div class="actions">
          <Button class="small" isBusy={acting.isBusy} onClick={() => void more()}>
            Show older
          </Button>
        </div>
      )}
    </Card>
  );
}
