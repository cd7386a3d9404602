import assert from "node:assert/strict";
import { test } from "node:test";

import { elideMiddle, elideStart, formatBytes, formatExact, formatNumber } from "../src/format";

test("numbers are short, and nothing is cut to a bound", () => {
  assert.equal(formatNumber(0), "0");
  assert.equal(formatNumber(1234.5678), "1234.6");
  assert.equal(formatNumber(999_999.9, 4), "1000000");
  assert.equal(formatNumber(1e9 + 1), "1e9");
  assert.equal(formatNumber(3.25e12, 4), "3.25e12");
  assert.equal(formatNumber(-0.00001), "−1e−5");
  assert.equal(formatNumber(NaN), "NaN");
  assert.equal(formatNumber(Infinity), "+∞");
  assert.equal(formatNumber(-Infinity), "−∞");
});

test("exact text reads back as the same number", () => {
  const numbers = [0.1, 1 / 3, 1e-45, 3.4028234663852886e38, 1e300, 123456789, -2.5, 16777217];
  for (const number of numbers) {
    const back = Number(formatExact(number).replaceAll("−", "-"));
    // A float32 need only read back as the same float32: its shortest text has fewer digits.
    assert.equal(Math.fround(number) === number ? Math.fround(back) : back, number);
  }
  assert.equal(formatExact(Math.fround(0.1)), "0.1");
});

test("names lose their middle, never their end", () => {
  const width = (part: string) => part.length;
  assert.equal(elideMiddle("short", 10, width), "short");
  const cut = elideMiddle("Module.0.module.decoder.layers.11.mlp.linear_fc2.output.0", 30, width);
  assert.equal(cut.length, 30);
  assert.ok(cut.startsWith("Module.0") && cut.endsWith("output.0"));
  assert.equal(elideMiddle("abcdef", 0, width), "…");
  assert.equal(elideStart("layers.11.mlp", 6, width), "…1.mlp");
  assert.equal(elideStart("short", 5, width), "short");
  assert.equal(elideStart("abcdef", 0, width), "…");
});

test("sizes of files", () => {
  assert.equal(formatBytes(512), "512 B");
  assert.equal(formatBytes(1_300_000), "1.3 MB");
  assert.equal(formatBytes(245e9), "245 GB");
});
