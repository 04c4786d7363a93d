/** The input table with the answer's source cells highlighted. */

import { plain } from "../../lib/format";

type Cells = Record<string, string[]> | Record<string, string>[];

interface Props {
  table: unknown;
  answer: { answer: string; coordinates: [number, number][]; cells: string[] };
}

export default function Table({ table, answer }: Props) {
  const [names, rows] = rowsOf(table as Cells);
  const chosen = new Set(answer.coordinates.map(([row, column]) => `${row},${column}`));
  return (
    <>
      <p class="written">
        <bdi>{plain(answer.answer, 4000) || "(nothing)"}</bdi>
      </p>
      <div class="table-wrap" tabIndex={0} role="region" aria-label="Table">
        <table>
          <thead>
            <tr>
              {names.map((name) => (
                <th key={name} scope="col">
                  {plain(name, 80)}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.slice(0, 500).map((row, index) => (
              <tr key={index}>
                {row.map((cell, column) => (
                  <td key={column} class={chosen.has(`${index},${column}`) ? "chosen" : ""}>
                    {plain(cell, 400)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {answer.coordinates.length === 0 && <p class="note">The model named no source cells.</p>}
    </>
  );
}

function rowsOf(table: Cells): [string[], string[][]] {
  if (Array.isArray(table)) {
    const names = [...new Set(table.flatMap((row) => Object.keys(row)))];
    return [names, table.map((row) => names.map((name) => row[name] ?? ""))];
  }
  const names = Object.keys(table ?? {});
  const length = Math.max(0, ...names.map((name) => table[name]?.length ?? 0));
  return [names, Array.from({ length }, (_, row) => names.map((name) => table[name]?.[row] ?? ""))];
}
