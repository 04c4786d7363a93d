/** Base paths of the console and the API. A path prefix applies to both. */

function prefix(): string {
  const meta = document.querySelector<HTMLMetaElement>('meta[name="stoker-base"]');
  const given = meta?.content ?? "/";
  return given.endsWith("/") ? given : `${given}/`;
}

/** The server's root path, with a slash at its end. */
export const ROOT = prefix();
/** The console's path, without a slash at its end. */
export const CONSOLE = `${ROOT}console`;

/** The address of a page: `page("keys")`. */
export function page(path = "", query?: Record<string, string>): string {
  const search = query ? `?${new URLSearchParams(query)}` : "";
  return `${CONSOLE}/${path}${search}`;
}

/** The address of a route of the API: `route("/v1/models")`. */
export function route(path: string): string {
  return ROOT.slice(0, -1) + path;
}
