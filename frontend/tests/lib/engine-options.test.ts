import { describe, expect, it } from "vitest";
import { devicesOf, optionsOf, withDevices } from "../../src/lib/engine-options";

describe("engine options", () => {
  it("are a JSON object", () => {
    expect(optionsOf("")).toEqual({});
    expect(optionsOf('{"speculation": "off"}')).toEqual({ speculation: "off" });
    for (const text of ["{", "[]", "null", "3"]) expect(optionsOf(text)).toBeNull();
  });

  it("contain the number of GPUs", () => {
    expect(devicesOf('{"devices": 4}')).toBe(4);
    for (const text of ["", "{}", '{"devices": null}', '{"devices": "4"}', "{"]) expect(devicesOf(text)).toBe(1);
  });

  it("keep the other options if the number of GPUs changes", () => {
    const text = withDevices('{"quantization": "fp8"}', 2);
    expect(JSON.parse(text)).toEqual({ quantization: "fp8", devices: 2 });
    expect(JSON.parse(withDevices(text, 1))).toEqual({ quantization: "fp8", devices: null });
    expect(withDevices("{", 2)).toBe("{");
  });
});
