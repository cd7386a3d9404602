// A value's state by its bits (docs/format.md, "Values"): "missing" is a NaN with a payload, so never compare values,
// and never copy them one by one (an engine may replace a NaN by another): look at the bits of the buffer that arrived.

export type FloatArray = Float32Array<ArrayBuffer> | Float64Array<ArrayBuffer>;

export const enum State {
  Number = 0,
  Missing = 1,
  NotANumber = 2,
  PlusInfinity = 3,
  MinusInfinity = 4,
}

const MISSING_FLOAT32 = 0x7fc04d56;
const MISSING_FLOAT64_HIGH = 0x7ff809aa;
const MISSING_FLOAT64_LOW = 0xc0000000;

/** Tells the missing value from every other NaN in one array. */
export function missingTest(values: FloatArray): (index: number) => boolean {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.byteLength / 4);
  if (values instanceof Float32Array) return (index) => bits[index] === MISSING_FLOAT32;
  return (index) => bits[2 * index] === MISSING_FLOAT64_LOW && bits[2 * index + 1] === MISSING_FLOAT64_HIGH;
}

export function stateOf(values: FloatArray, index: number): State {
  const value = values[index];
  if (Number.isFinite(value)) return State.Number;
  if (value === Infinity) return State.PlusInfinity;
  if (value === -Infinity) return State.MinusInfinity;
  return missingTest(values)(index) ? State.Missing : State.NotANumber;
}

/** How many values are in each state, by State. */
export type StateCounts = [number, number, number, number, number];

/** What the color scale and the legend need to know about an array. */
export interface Summary {
  counts: StateCounts;
  /** Of the finite values; NaN when there is none. */
  min: number;
  max: number;
  /** 1st, 50th and 99th percentile of the finite values, from a sample of a large array. */
  low: number;
  median: number;
  high: number;
  /** Smallest finite magnitude above zero. */
  smallest: number;
}

const SAMPLE_SIZE = 1 << 16;

export function summarize(values: FloatArray): Summary {
  const isMissing = missingTest(values);
  const counts: StateCounts = [0, 0, 0, 0, 0];
  let min = Infinity;
  let max = -Infinity;
  let smallest = Infinity;
  for (let i = 0; i < values.length; ++i) {
    const value = values[i];
    if (value - value === 0) {
      counts[State.Number]++;
      if (value < min) min = value;
      if (value > max) max = value;
      const magnitude = Math.abs(value);
      if (magnitude < smallest && magnitude > 0) smallest = magnitude;
    } else if (value === Infinity) counts[State.PlusInfinity]++;
    else if (value === -Infinity) counts[State.MinusInfinity]++;
    else counts[isMissing(i) ? State.Missing : State.NotANumber]++;
  }
  if (counts[State.Number] === 0) {
    return { counts, min: NaN, max: NaN, low: NaN, median: NaN, high: NaN, smallest: NaN };
  }
  // A stride that shares no factor with the row length would be needed for a regular sample; odd steps do well enough.
  const step = Math.max(1, Math.floor(values.length / SAMPLE_SIZE)) | 1;
  let sample = new Float64Array(Math.ceil(values.length / step));
  let size = 0;
  for (let i = 0; i < values.length; i += step) {
    const value = values[i];
    if (value - value === 0) sample[size++] = value;
  }
  sample = sample.subarray(0, size).sort();
  const quantile = (q: number) =>
    size === 0 ? (min + max) / 2 : sample[Math.min(size - 1, Math.floor(q * size))];
  return { counts, min, max, low: quantile(0.01), median: quantile(0.5), high: quantile(0.99), smallest };
}
