/** Table with a render function per column. On a phone each row is a card. */

import type { ComponentChildren } from "preact";

export interface Column<T> {
  name: string;
  /** Hides the column name visually, for columns of buttons. */
  isQuiet?: boolean;
  isNumber?: boolean;
  cell: (row: T) => ComponentChildren;
}

interface Props<T> {
  label: string;
  columns: readonly (Column<T> | false)[];
  rows: readonly T[] | undefined;
  keyOf: (row: T) => string;
}

export function Table<T>({ label, columns, rows, keyOf }: Props<T>) {
  const shown = columns.filter((one): one is Column<T> => one !== false);
  return (
    <div class="table-wrap stacked" tabIndex={0} role="region" aria-label={label}>
      <table>
        <thead>
          <tr>
            {shown.map((one) => (
              <th key={one.name} scope="col" class={one.isNumber ? "number" : undefined}>
                {one.isQuiet ? <span class="visually-hidden">{one.name}</span> : one.name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows?.map((row) => (
            <tr key={keyOf(row)}>
              {shown.map((one) => (
                <td
                  key={one.name}
                  class={one.isNumber ? "number" : undefined}
                  data-label={one.isQuiet ? undefined : one.name}
                >
                  {one.cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
