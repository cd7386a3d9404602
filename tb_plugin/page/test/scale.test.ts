import assert from "node:assert/strict";
import { test } from "node:test";

import { type ColorScale, makeScale, niceTicks, scaleTicks } from "../src/scale";
import { summarize } from "../src/values";

const scaleOf = (...values: number[]) => makeScale(summarize(new Float64Array(values)), "auto", "full");

function assertMonotone(scale: ColorScale): void {
  let previous = -Infinity;
  for (let step = 0; step <= 50; ++step) {
    const value = scale.fromUnit(step / 50);
    assert.ok(value > previous || step === 0, `${scale.kind} is not monotone at ${value}`);
    assert.ok(Math.abs(scale.toUnit(value) - step / 50) < 1e-6);
    previous = value;
  }
}

test("a narrow range is linear, a wide positive one logarithmic", () => {
  assert.equal(scaleOf(1, 2, 3).kind, "linear");
  assert.equal(scaleOf(1e-6, 1e-3, 1, 1e4).kind, "log");
});

test("zero has its place in the middle when there are both signs", () => {
  const scale = scaleOf(-1, 0.5, 3);
  assert.ok(scale.diverging);
  assert.equal(scale.toUnit(0), 0.5);
  assert.deepEqual([scale.low, scale.high], [-3, 3]);
});

test("negative values alone keep their own range", () => {
  const scale = scaleOf(-3, -2, -1);
  assert.deepEqual([scale.low, scale.high, scale.diverging], [-3, -1, false]);
});

test("every scale is monotone and inverts itself", () => {
  const summary = summarize(new Float64Array([-5, -0.001, 0, 0.2, 900]));
  assertMonotone(makeScale(summary, "linear", "full"));
  assertMonotone(makeScale(summary, "symlog", "full"));
  assertMonotone(makeScale(summarize(new Float64Array([1e-8, 1, 1e8])), "log", "full"));
});

test("one single value, zero, and nothing at all give a scale of some width", () => {
  for (const scale of [scaleOf(4), scaleOf(0), scaleOf(), scaleOf(NaN, Infinity), scaleOf(-2)]) {
    assert.ok(scale.low < scale.high);
    assert.ok(Number.isFinite(scale.toUnit(scale.low)));
  }
});

test("the largest numbers there are don't overflow", () => {
  const scale = scaleOf(-Number.MAX_VALUE, Number.MAX_VALUE);
  assert.ok([0, 0.5, 1].includes(scale.toUnit(0)));
  assert.ok(Number.isFinite(scale.toUnit(Number.MAX_VALUE)));
});

test("a logarithm is refused where nothing is positive", () => {
  assert.equal(makeScale(summarize(new Float64Array([-4, -2])), "log", "full").kind, "linear");
});

test("ticks are round, ascending, and inside the range", () => {
  assert.deepEqual(niceTicks(0, 1, 5), [0, 0.2, 0.4, 0.6000000000000001, 0.8, 1]);
  for (const scale of [scaleOf(1e-6, 1, 1e4), scaleOf(-1000, 0.001, 5), scaleOf(2, 3)]) {
    const ticks = scaleTicks(scale, 6);
    assert.ok(ticks.length > 1);
    assert.deepEqual(
      ticks,
      [...ticks].sort((a, b) => a - b),
    );
    assert.ok(ticks.map(scale.toUnit).every((unit) => unit > -1e-6 && unit < 1 + 1e-6));
  }
  assert.deepEqual(niceTicks(3, 3, 5), [3]);
});
