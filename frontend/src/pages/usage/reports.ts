/** Loads usage reports, up to a page limit, and exports them as CSV. */

import { api, call, must } from "../../api/client";
import type { UsageReport } from "../../api/types";
import { saveAs } from "../../lib/save";

const MOST_PAGES = 10;
const NEXT = /<\?([^>]*)>; rel="next"/;

export interface Asked {
  start: string;
  group_by: string;
  /** Only these deployments. Empty: all. */
  deployment_id?: string[];
}

/** Returns a report with the rows of its pages. `has_more`: further rows were not read. */
export async function read(asked: Asked): Promise<UsageReport> {
  let page: string | undefined;
  let report: UsageReport | undefined;
  for (let number = 0; number < MOST_PAGES; number += 1) {
    const query = page ? { ...asked, page } : asked;
    const found = (await must(api.GET("/v1/usage", { params: { query } }))) as UsageReport;
    report = report ? { ...found, data: report.data.concat(found.data) } : found;
    if (!found.next_page) break;
    page = found.next_page;
  }
  return report as UsageReport;
}

/** Downloads all pages of a report as one CSV file. */
export async function save(asked: Asked): Promise<void> {
  const parts: string[] = [];
  let query = new URLSearchParams({ start: asked.start, group_by: asked.group_by, format: "csv" }).toString();
  while (query) {
    const response = await call(`/v1/usage?${query}`);
    const text = await response.text();
    // Each page has a header line.
    parts.push(parts.length === 0 ? text : text.slice(text.indexOf("\n") + 1));
    query = NEXT.exec(response.headers.get("link") ?? "")?.[1] ?? "";
  }
  const name = `usage-by-${asked.group_by.replaceAll(",", "-")}-${asked.start.slice(0, 10)}.csv`;
  saveAs(new Blob(parts, { type: "text/csv" }), name);
}
