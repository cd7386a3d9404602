import assert from "node:assert/strict";
import { test } from "node:test";

import { INITIAL_STATE, stateFromParameters, stateToParameters, type ViewState } from "../src/view_state";

const roundTrip = (state: ViewState) => stateFromParameters(new URLSearchParams(stateToParameters(state)));

test("a view comes back from its address", () => {
  const state: ViewState = {
    db: "run 1/ü&=#.trend.db",
    metric: "forward",
    statistic: "norm",
    dimension: "target",
    step: 12,
    rank: 3,
    target: "Module.a~b.Linear.output.0 · call 2",
    lines: [
      { along: "target", step: 4, rank: 0 },
      { along: "step", rank: 1, target: "Module.a~b.output.0" },
    ],
    scale: "symlog",
    range: "full",
    palette: "rainbow",
    logLines: true,
    zoom: { left: 0.25, right: 0.5, top: 0, bottom: 1 },
  };
  assert.deepEqual(roundTrip(state), state);
});

test("the default view needs no parameters", () => {
  assert.deepEqual(stateToParameters(INITIAL_STATE), []);
  const { lines, dimension } = roundTrip(INITIAL_STATE);
  assert.deepEqual({ lines, dimension }, { lines: [], dimension: "step" });
});

test("nonsense in an address is ignored", () => {
  const state = stateFromParameters(
    new URLSearchParams(
      "p.trendprobe.dim=sideways&p.trendprobe.step=1e3&p.trendprobe.zoom=0.5,0.2,0,1&p.trendprobe.zoom=x" +
        "&p.trendprobe.line=q~1~2~m&p.trendprobe.line=s~~x~m&p.trendprobe.line=&p.trendprobe.scale=__proto__",
    ),
  );
  assert.deepEqual(
    [state.dimension, state.step, state.zoom, state.lines, state.scale],
    ["step", undefined, undefined, [], "auto"],
  );
});

test("the same line twice is one line", () => {
  const twice = "p.trendprobe.line=s~~1~m&p.trendprobe.line=s~~1~m";
  assert.equal(stateFromParameters(new URLSearchParams(twice)).lines.length, 1);
});
