/** Provides the parts of a browser that modules use when they are imported. */

import { vi } from "vitest";

vi.stubGlobal("window", globalThis);
vi.stubGlobal("location", { origin: "https://stoker.test" });
vi.stubGlobal("document", { querySelector: () => null });
vi.stubGlobal("sessionStorage", { getItem: () => null });
/** Tests define the responses. */
vi.stubGlobal("fetch", vi.fn());
