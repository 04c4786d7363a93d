/** The `config` of a deployment as JSON text: options of its engine. */

export const VLLM = "vllm";
export const MAX_DEVICES = 64;

/** Returns the options, or null if the text is not a JSON object. */
export function optionsOf(text: string): Record<string, unknown> | null {
  try {
    const found: unknown = JSON.parse(text || "{}");
    if (typeof found === "object" && found !== null && !Array.isArray(found)) return found as Record<string, unknown>;
  } catch {
    // Not JSON.
  }
  return null;
}

/** Returns the number of GPUs that a replica is spread over. */
export function devicesOf(text: string): number {
  const count = optionsOf(text)?.devices;
  return typeof count === "number" ? count : 1;
}

/** Returns the text with another number of GPUs. Text that is no JSON object stays as it is. */
export function withDevices(text: string, count: number): string {
  const options = optionsOf(text);
  if (!options) return text;
  return JSON.stringify({ ...options, devices: count > 1 ? count : null }, null, 2);
}
