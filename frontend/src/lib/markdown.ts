/** Parses the Markdown blocks of model cards (CommonMark without HTML and nesting). */

export type Block =
  | { type: "heading"; level: number; text: string }
  | { type: "paragraph" | "quote" | "code"; text: string }
  | { type: "list"; items: string[] }
  | { type: "table"; head: string[]; rows: string[][] };

const ITEM = /^\s{0,6}(?:[-*+]|\d{1,9}[.)])\s+(.*)$/;

function cells(line: string): string[] {
  return line
    .trim()
    .replace(/^\||\|$/g, "")
    .split("|")
    .map((cell) => cell.trim());
}

export function blocksOf(text: string): Block[] {
  // Skips the YAML front matter.
  const lines = text.replace(/^---\r?\n[\s\S]*?\r?\n---[ \t]*(?:\r?\n|$)/, "").split(/\r?\n/);
  const found: Block[] = [];
  let at = 0;
  const more = (test: (line: string) => boolean): string[] => {
    const begin = at;
    while (at < lines.length && test(lines[at] ?? "")) at += 1;
    return lines.slice(begin, at);
  };
  while (at < lines.length) {
    const line = lines[at] ?? "";
    const heading = /^(#{1,6})\s+(?=\S)/.exec(line);
    const fence = /^\s{0,3}(```+|~~~+)/.exec(line)?.[1];
    if (!line.trim()) {
      at += 1;
    } else if (heading) {
      found.push({
        type: "heading",
        level: heading[1]?.length ?? 1,
        text: line
          .slice(heading[0].length)
          .trimEnd()
          .replace(/\s#{1,9}$/, ""),
      });
      at += 1;
    } else if (fence) {
      at += 1;
      found.push({ type: "code", text: more((one) => !one.trim().startsWith(fence)).join("\n") });
      at += 1;
    } else if (line.startsWith(">")) {
      found.push({
        type: "quote",
        text: more((one) => one.startsWith(">"))
          .map((one) => one.replace(/^>\s?/, ""))
          .join(" "),
      });
    } else if (line.includes("|") && /^[\s|:-]+$/.test(lines[at + 1] ?? "") && (lines[at + 1] ?? "").includes("-")) {
      at += 2;
      found.push({ type: "table", head: cells(line), rows: more((one) => one.includes("|")).map(cells) });
    } else if (ITEM.test(line)) {
      found.push({ type: "list", items: more((one) => ITEM.test(one)).map((one) => ITEM.exec(one)?.[1] ?? one) });
    } else {
      const begin = at;
      const words = more(
        (one) => Boolean(one.trim()) && !/^#{1,6}\s/.test(one) && !/^\s{0,3}(```|~~~)/.test(one) && !ITEM.test(one),
      );
      // A line that starts no other block is text.
      if (at === begin) at += 1;
      found.push({ type: "paragraph", text: (words.length ? words : [line]).join(" ") });
    }
  }
  return found;
}
