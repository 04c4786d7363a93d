import { describe, expect, it } from "vitest";
import * as format from "../../src/lib/format";

const NOON = "2026-03-01T12:00:00Z";
const NOON_MS = Date.parse(NOON);

describe("numbers", () => {
  it.each([
    [0, "0 B"],
    [999, "999 B"],
    [1000, "1.0 KB"],
    [99_900, "99.9 KB"],
    [99_960, "100 KB"],
    [123_456, "123 KB"],
    [999_499, "999 KB"],
    [999_500, "1.0 MB"],
    [1_500_000_000, "1.5 GB"],
    [5e17, "500 PB"],
    [5e18, "5000 PB"],
  ])("formats %d bytes as %s", (value, text) => {
    expect(format.bytes(value)).toBe(text);
  });

  it.each([
    [0, "0"],
    [999.5, "1,000"],
    [1_234_567, "1,234,567"],
  ])("formats the count %d as %s", (value, text) => {
    expect(format.count(value)).toBe(text);
  });

  it.each([
    [0, "0/s"],
    [0.04, "0.0/s"],
    [9.94, "9.9/s"],
    [9.96, "10/s"],
    [41.5, "42/s"],
  ])("formats the rate %d as %s", (value, text) => {
    expect(format.rate(value)).toBe(text);
  });

  it.each([
    [0, "0.0 ms"],
    [9.94, "9.9 ms"],
    [9.96, "10 ms"],
    [999.4, "999 ms"],
    [999.6, "1.0 s"],
    [7916, "7.9 s"],
    [9999.6, "10.0 s"],
    [61_250, "61.3 s"],
  ])("formats %d milliseconds as %s", (value, text) => {
    expect(format.ms(value)).toBe(text);
  });

  it("formats shares as percentages", () => {
    expect(format.percent(0.126)).toBe("13 %");
    expect(format.percent(0.126, 1)).toBe("12.6 %");
    expect(format.percent(0)).toBe("0 %");
  });

  it("does not round a score below 1 up to 1", () => {
    expect(format.score(0.9994)).toBe("0.999");
    expect(format.score(0.9996)).toBe("> 0.999");
    expect(format.score(1)).toBe("1.000");
  });

  it.each([
    [0, "0"],
    [123, "0.0001"],
    [999_900, "0.9999"],
    [1_500_000, "1.50"],
    [-1_500_000, "-1.50"],
    [1_234_500_000, "1,235"],
  ])("formats %d microcredits as %s", (value, text) => {
    expect(format.credits(value)).toBe(text);
  });

  it("shows a dash for missing numbers", () => {
    for (const formatted of [format.bytes, format.count, format.rate, format.ms, format.percent]) {
      expect(formatted(null)).toBe("–");
      expect(formatted(undefined)).toBe("–");
    }
  });
});

describe("times", () => {
  it.each([
    [0.4, "0 s"],
    [59, "59 s"],
    [60, "1 min"],
    [3599, "60 min"],
    [3600, "1 h"],
    [86_400, "1 d"],
    [10 * 86_400, "10 d"],
  ])("formats %d seconds as %s", (value, text) => {
    expect(format.duration(value)).toBe(text);
  });

  it.each([
    [NOON_MS - 500, "now"],
    [NOON_MS + 1_900, "now"],
    [NOON_MS + 5_000, "5 s ago"],
    [NOON_MS + 7_200_000, "2 h ago"],
    [NOON_MS - 120_000, "in 2 min"],
  ])("formats noon at %d as %s", (now, text) => {
    expect(format.ago(NOON, now)).toBe(text);
    expect(format.ago(NOON_MS / 1000, now)).toBe(text);
  });

  it("reads numbers as seconds and texts as ISO dates", () => {
    expect(format.date(NOON_MS / 1000)?.getTime()).toBe(NOON_MS);
    expect(format.date(NOON)?.getTime()).toBe(NOON_MS);
    expect(format.date("no date")).toBeNull();
  });

  it("shows the date and the clock in the local time zone", () => {
    expect(format.moment(NOON)).toBe("1 Mar 2026, 12:00:00");
    expect(format.clock(NOON)).toBe("12:00:00");
  });

  it("shows missing times", () => {
    expect(format.ago(null)).toBe("never");
    expect(format.moment(undefined)).toBe("–");
    expect(format.clock("no date")).toBe("–");
  });
});

describe("untrusted text", () => {
  it("replaces characters that reorder or hide text", () => {
    expect(format.plain("a\u202eb\u200bc\u0007d\u2066e\ufefff")).toBe("a\ufffdb\ufffdc\ufffdd\ufffde\ufffdf");
  });

  it("keeps tabs, line breaks and letters of all scripts", () => {
    expect(format.plain("tab\tline\nשלום 日本 🙂")).toBe("tab\tline\nשלום 日本 🙂");
  });

  it("cuts long text", () => {
    expect(format.plain("abcdef", 3)).toBe("abc…");
    expect(format.plain("abc", 3)).toBe("abc");
    expect(format.plain("x".repeat(300))).toHaveLength(257);
  });
});
