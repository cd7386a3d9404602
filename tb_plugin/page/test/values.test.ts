import assert from "node:assert/strict";
import { test } from "node:test";

import { State, stateOf, summarize } from "../src/values";

/** The bit patterns of docs/format.md, written out, one of each state. */
function float32States(): Float32Array<ArrayBuffer> {
  const values = new Float32Array(5);
  new Uint32Array(values.buffer).set([0x3fc00000, 0x7fc04d56, 0x7fc00000, 0x7f800000, 0xff800000]);
  return values;
}

function float64States(): Float64Array<ArrayBuffer> {
  const values = new Float64Array(5);
  new BigUint64Array(values.buffer).set([
    0x3ff8000000000000n,
    0x7ff809aac0000000n,
    0x7ff8000000000000n,
    0x7ff0000000000000n,
    0xfff0000000000000n,
  ]);
  return values;
}

const STATES = [
  State.Number,
  State.Missing,
  State.NotANumber,
  State.PlusInfinity,
  State.MinusInfinity,
] as const;

for (const [width, values] of [
  ["float32", float32States()],
  ["float64", float64States()],
] as const) {
  test(`states of ${width} are told apart by their bits`, () => {
    assert.deepEqual(
      STATES.map((_, index) => stateOf(values, index)),
      [...STATES],
    );
    assert.equal(values[0], 1.5);
  });

  test(`counts of ${width} leave no value out`, () => {
    const { counts, min, max } = summarize(values);
    assert.deepEqual(counts, [1, 1, 1, 1, 1]);
    assert.deepEqual([min, max], [1.5, 1.5]);
  });
}

test("a view into a larger buffer reads its own bits", () => {
  const whole = new Float32Array(8);
  new Uint32Array(whole.buffer)[5] = 0x7fc04d56;
  const view = new Float32Array(whole.buffer, 16, 4);
  assert.equal(stateOf(view, 1), State.Missing);
  assert.equal(stateOf(view, 0), State.Number);
});

test("NaN and infinities have no part in minimum, maximum and percentiles", () => {
  const summary = summarize(new Float32Array([NaN, -3, Infinity, -1, -Infinity, -2]));
  assert.deepEqual([summary.min, summary.max, summary.median], [-3, -1, -2]);
  assert.equal(summary.smallest, 1);
});

test("an array without a number has no minimum", () => {
  const summary = summarize(new Float32Array([NaN, Infinity]));
  assert.ok([summary.min, summary.max, summary.low, summary.median, summary.high].every(Number.isNaN));
});

test("an empty array is not an error", () => {
  assert.deepEqual(summarize(new Float32Array(0)).counts, [0, 0, 0, 0, 0]);
});

test("percentiles of a large array are near the exact ones", () => {
  const values = Float32Array.from({ length: 1_000_000 }, (_, index) => (index * 7919) % 1_000_003);
  const { low, median, high } = summarize(values);
  assert.ok(Math.abs(low - 10_000) < 3_000, String(low));
  assert.ok(Math.abs(median - 500_000) < 10_000, String(median));
  assert.ok(Math.abs(high - 990_000) < 3_000, String(high));
});
