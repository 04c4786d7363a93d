/** Renders a model card's Markdown with a fixed set of elements and text only. */

import type { ComponentChildren } from "preact";
import { plain } from "../lib/format";
import { type Block, blocksOf } from "../lib/markdown";

const MOST = 200_000;
/** Each part has a length limit. Otherwise a card of only brackets takes quadratic time. */
const INLINE =
  /(`[^`\n]{1,400}`)|(\*\*[^*\n]{1,400}\*\*|__[^_\n]{1,400}__)|(\*[^*\s][^*\n]{0,400}\*|\b_[^_\s][^_\n]{0,400}_\b)|(!?\[[^[\]\n]{0,400}\]\([^)\s]{1,1000}(?:\s{1,9}"[^"\n]{0,400}")?\))|(<?https?:\/\/[^\s<>)]{1,1000}>?)/;

/** Accepts only absolute links. */
function Link({ address, children }: { address: string; children: ComponentChildren }) {
  if (!/^https?:\/\//i.test(address)) return <>{children}</>;
  return (
    <a href={address} target="_blank" rel="noopener noreferrer nofollow">
      {children}
    </a>
  );
}

function inline(text: string): ComponentChildren[] {
  const found: ComponentChildren[] = [];
  let rest = text;
  for (let match = INLINE.exec(rest); match; match = INLINE.exec(rest)) {
    const [whole, code, strong, soft, link, bare] = match;
    found.push(rest.slice(0, match.index));
    if (code) found.push(<code>{code.slice(1, -1)}</code>);
    else if (strong) found.push(<strong>{strong.slice(2, -2)}</strong>);
    else if (soft) found.push(<em>{soft.slice(1, -1)}</em>);
    else if (link) {
      const [, mark, words, address] = /^(!?)\[([^\]]*)\]\(([^)\s]+)/.exec(link) ?? [];
      // Images are external, and the page loads data only from the server.
      found.push(mark ? `[${words || "picture"}]` : <Link address={address ?? ""}>{words}</Link>);
    } else if (bare) {
      const address = bare.replace(/^<|>$/g, "");
      found.push(<Link address={address}>{address}</Link>);
    }
    rest = rest.slice(match.index + whole.length);
  }
  found.push(rest);
  return found;
}

function Shown({ block }: { block: Block }) {
  switch (block.type) {
    case "heading":
      return block.level <= 2 ? <h3>{inline(block.text)}</h3> : <h4>{inline(block.text)}</h4>;
    case "code":
      return (
        <pre class="code-block" tabIndex={0}>
          {block.text}
        </pre>
      );
    case "list":
      return (
        <ul class="bullets">
          {block.items.map((one, index) => (
            <li key={index}>{inline(one)}</li>
          ))}
        </ul>
      );
    case "quote":
      return <blockquote class="written">{inline(block.text)}</blockquote>;
    case "table":
      return (
        <div class="table-wrap" tabIndex={0} role="region" aria-label="Model card table">
          <table>
            <thead>
              <tr>
                {block.head.map((one, index) => (
                  <th key={index} scope="col">
                    {inline(one)}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {block.rows.map((row, index) => (
                <tr key={index}>
                  {row.map((cell, column) => (
                    <td key={column}>{inline(cell)}</td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      );
    default:
      return <p>{inline(block.text)}</p>;
  }
}

export default function Markdown({ text }: { text: string }) {
  return (
    <div class="markdown stack" dir="auto">
      {blocksOf(plain(text, MOST)).map((block, index) => (
        <Shown key={index} block={block} />
      ))}
    </div>
  );
}
