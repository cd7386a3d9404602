// One slice as it is shown: the values together with what they were asked for, so that titles and axes always belong to
// the map on the screen and not to a selection whose values are still on their way.

import {
  type Dataset,
  type Dimension,
  fetchSlice,
  fetchTargets,
  type Matrix,
  type Source,
  type Targets,
} from "./api";
import {
  commonPrefix,
  rankLabel,
  SLICE_AXES,
  stepDetail,
  stepDetailKind,
  stepLabel,
  targetLabels,
} from "./labels";
import { text } from "./messages";
import { summarize, type Summary } from "./values";
import type { AxisText } from "./heat_map_canvas";

export interface TargetList {
  targets: Targets;
  labels: string[];
  /** Label → index. */
  places: Map<string, number>;
  /** What all labels begin with. */
  prefix: string;
}

export interface Slice {
  dataset: Dataset;
  source: Source;
  dimension: Dimension;
  /** Index of the fixed value on its axis. */
  index: number;
  list: TargetList;
  matrix: Matrix;
  summary: Summary;
  rowAxis: AxisText;
  columnAxis: AxisText;
  title: string;
}

const lists = new Map<string, TargetList>();

/** The targets of a metric; kept for the metrics used last. */
export async function loadTargets(
  db: string,
  version: string,
  metric: string,
  signal: AbortSignal,
): Promise<TargetList> {
  const key = `${db}\n${version}\n${metric}`;
  const known = lists.get(key);
  if (known) return known;
  const targets = await fetchTargets(db, version, metric, signal);
  const labels = targetLabels(targets);
  const places = new Map(labels.map((label, index) => [label, index]));
  const list = { targets, labels, places, prefix: commonPrefix(labels) };
  lists.set(key, list);
  if (lists.size > 16) lists.delete(lists.keys().next().value as string);
  return list;
}

/** The value of an axis at an index, as the API names it. */
export function axisValue(dataset: Dataset, list: TargetList, dimension: Dimension, index: number): number {
  if (dimension === "step") return dataset.steps.step[index];
  if (dimension === "rank") return dataset.ranks.rank[index];
  return list.targets.target[index];
}

export async function loadSlice(
  dataset: Dataset,
  source: Source,
  list: TargetList,
  dimension: Dimension,
  index: number,
  signal: AbortSignal,
): Promise<Slice> {
  const matrix = await fetchSlice(source, dimension, axisValue(dataset, list, dimension, index), signal);
  const axes = SLICE_AXES[dimension];
  return {
    dataset,
    source,
    dimension,
    index,
    list,
    matrix,
    summary: summarize(matrix.values),
    rowAxis: axisText(dataset, list, axes.row),
    columnAxis: axisText(dataset, list, axes.column),
    title: `${source.metric} · ${source.statistic} · ${placeName(dataset, list, dimension, index)}`,
  };
}

/** "step 12 (training step 6, micro-step 0)", "rank 3 (host)", or the module's name. */
export function placeName(dataset: Dataset, list: TargetList, dimension: Dimension, index: number): string {
  if (dimension === "step") return `${text.axis.step} ${stepLabel(dataset, index)}`;
  if (dimension === "rank") return `${text.axis.rank} ${rankLabel(dataset, index)}`;
  return list.labels[index];
}

function axisText(dataset: Dataset, list: TargetList, dimension: Dimension): AxisText {
  if (dimension === "target") {
    return { title: text.axisTitle.target, label: (index) => list.labels[index], prefix: list.prefix };
  }
  if (dimension === "rank") {
    return { title: text.axisTitle.rank, label: (index) => String(dataset.ranks.rank[index]) };
  }
  const kind = stepDetailKind(dataset);
  const title = {
    none: text.axisTitle.step,
    training: text.axisTitle.stepTraining,
    micro: text.axisTitle.stepMicro,
  };
  return {
    title: title[kind],
    label: (index) => String(dataset.steps.step[index]),
    detail: kind === "none" ? undefined : (index) => stepDetail(dataset, index),
  };
}
