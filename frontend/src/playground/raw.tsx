/** Raw JSON response with long values shortened. */

const MOST_TEXT = 300;
const MOST_ITEMS = 64;

function cut(value: unknown): unknown {
  if (typeof value === "string" && value.length > MOST_TEXT) {
    return `${value.slice(0, 80)}… (${value.length} characters)`;
  }
  if (Array.isArray(value)) {
    const kept = value.slice(0, MOST_ITEMS).map(cut);
    return value.length > MOST_ITEMS ? [...kept, `… (${value.length} items)`] : kept;
  }
  if (typeof value === "object" && value !== null) {
    return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, cut(one)]));
  }
  return value;
}

export function Raw({ value, isOpen }: { value: unknown; isOpen: boolean }) {
  return (
    <details open={isOpen}>
      <summary>JSON</summary>
      <pre class="code-block" tabIndex={0} aria-label="Response as JSON">
        {JSON.stringify(cut(value), null, 2)}
      </pre>
    </details>
  );
}
