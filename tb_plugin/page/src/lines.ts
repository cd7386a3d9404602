// The lines of the chart: which are chosen, what they are called, and their values.

import { useEffect, useRef, useState } from "preact/hooks";

import { type Dataset, type Dimension, DIMENSIONS, fetchLine, type Source } from "./api";
import type { CellPlace } from "./heat_map_canvas";
import { SLICE_AXES } from "./labels";
import { axisValue, type Slice, type TargetList } from "./slice";
import { text } from "./messages";
import type { FloatArray } from "./values";
import { lineKey, type LinePlace } from "./view_state";

/** The line that a click on a cell of a slice adds: along the slice's dimension, through the cell. */
export function lineThrough(slice: Slice, { row, column }: CellPlace): LinePlace {
  const axes = SLICE_AXES[slice.dimension];
  const line: LinePlace = { along: slice.dimension };
  for (const [dimension, index] of [
    [axes.row, row],
    [axes.column, column],
  ] as const) {
    if (dimension === "target") line.target = slice.list.labels[index];
    else line[dimension] = axisValue(slice.dataset, slice.list, dimension, index);
  }
  return line;
}

/** Where on their axes the two fixed places of a line are; undefined where the database or metric lacks one. */
export function linePlaces(
  line: LinePlace,
  dataset: Dataset,
  list: TargetList,
): Partial<Record<Dimension, number>> | undefined {
  const indices: Partial<Record<Dimension, number>> = {};
  if (line.along !== "step") indices.step = dataset.steps.step.indexOf(line.step as number);
  if (line.along !== "rank") indices.rank = dataset.ranks.rank.indexOf(line.rank as number);
  if (line.along !== "target") indices.target = list.places.get(line.target as string) ?? -1;
  return Object.values(indices).every((index) => index >= 0) ? indices : undefined;
}

/** What a line is called: the short part, which is never cut, and the module. */
export interface LineName {
  place: string;
  target: string;
}

export function lineName(line: LinePlace): LineName {
  const parts: string[] = [];
  if (line.along !== "step") parts.push(`${text.axis.step} ${line.step ?? ""}`);
  if (line.along !== "rank") parts.push(`${text.axis.rank} ${line.rank ?? ""}`);
  return { place: parts.join(" · "), target: line.target ?? "" };
}

export interface LineData {
  values?: FloatArray;
  error?: string;
}

/** Loads the values of lines; keeps what it has while lines come and go, and aborts what nobody needs any more. */
export function useLineData(
  lines: LinePlace[],
  dataset: Dataset,
  list: TargetList,
  source: Source,
): ReadonlyMap<string, LineData> {
  const prefix = `${source.db}\n${source.version}\n${source.metric}\n${source.statistic}\n`;
  const [data, setData] = useState<ReadonlyMap<string, LineData>>(new Map());
  const pending = useRef(new Map<string, AbortController>());
  const keys = lines.map((line) => prefix + lineKey(line));

  useEffect(() => {
    for (const [key, controller] of pending.current) {
      if (!keys.includes(key)) {
        controller.abort();
        pending.current.delete(key);
      }
    }
    setData((known) => new Map([...known].filter(([key]) => keys.includes(key))));
    lines.forEach((line, position) => {
      const key = keys[position];
      const indices = linePlaces(line, dataset, list);
      if (data.has(key) || pending.current.has(key) || !indices) return;
      const controller = new AbortController();
      pending.current.set(key, controller);
      const fixed: Partial<Record<Dimension, number>> = {};
      for (const dimension of DIMENSIONS) {
        const index = indices[dimension];
        if (index !== undefined) fixed[dimension] = axisValue(dataset, list, dimension, index);
      }
      const settle = (value: LineData) => {
        if (controller.signal.aborted) return;
        pending.current.delete(key);
        setData((known) => new Map(known).set(key, value));
      };
      fetchLine(source, line.along, fixed, controller.signal).then(
        (values) => settle({ values }),
        (error: unknown) => settle({ error: (error as Error).message }),
      );
    });
  }, [keys.join("\n")]);

  useEffect(
    () => () => {
      for (const controller of pending.current.values()) controller.abort();
    },
    [],
  );

  return new Map(lines.map((line, position) => [lineKey(line), data.get(keys[position]) ?? {}]));
}
