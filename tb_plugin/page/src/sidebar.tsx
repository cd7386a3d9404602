// The controls at the left: what is shown, and how it is colored.

import { useEffect, useMemo, useState } from "preact/hooks";

import { type DatabaseEntry, type Dataset, type Dimension, DIMENSIONS } from "./api";
import { formatBytes, formatCount } from "./format";
import { rankLabel, stepLabel } from "./labels";
import { text } from "./messages";
import { css, type PaletteKind, stateColors } from "./palette";
import type { RangeKind, ScaleKind } from "./scale";
import { type Option, Select } from "./select";
import type { Slice, TargetList } from "./slice";
import { State } from "./values";
import type { ViewState } from "./view_state";

interface Props {
  state: ViewState;
  update: (change: Partial<ViewState>) => void;
  databases: DatabaseEntry[];
  notes: string[];
  db?: string;
  dataset?: Dataset;
  metric?: string;
  statistic?: string;
  list?: TargetList;
  /** Index of the value on its axis. */
  index: number;
  selectIndex: (index: number) => void;
  playing: boolean;
  setPlaying: (playing: boolean) => void;
  slice?: Slice;
  scaleKind?: string;
  dark: boolean;
  onJump: (state: State) => void;
}

export function Sidebar(props: Props) {
  const { state, update, databases, notes, db, dataset, metric, statistic } = props;
  const metricInfo = dataset?.metrics.find(({ name }) => name === metric);
  return (
    <form class="sidebar" onSubmit={(event) => event.preventDefault()}>
      <Select
        name="database"
        label={`${text.database} (${databases.length})`}
        options={databases.map(({ id, size }) => ({ label: id, hint: formatBytes(size) }))}
        selected={databases.findIndex(({ id }) => id === db)}
        onSelect={(index) => update({ db: databases[index].id })}
      />
      {dataset?.source === "msprobe" && <p class="note">{text.madeByMsprobe}</p>}
      {notes.length > 0 && (
        <details class="note">
          <summary>
            {text.notes}: {notes.length}
          </summary>
          <ul>
            {notes.map((note) => (
              <li key={note}>{note}</li>
            ))}
          </ul>
        </details>
      )}
      <div class="field-pair">
        <Select
          name="metric"
          label={text.metric}
          options={(dataset?.metrics ?? []).map(({ name, targets }) => ({
            label: name,
            hint: text.targets(formatCount(targets)),
          }))}
          selected={dataset?.metrics.findIndex(({ name }) => name === metric) ?? -1}
          onSelect={(index) => update({ metric: dataset?.metrics[index].name })}
        />
        <Select
          name="statistic"
          label={text.statistic}
          options={(metricInfo?.statistics ?? []).map((name) => ({ label: name }))}
          selected={metricInfo?.statistics.indexOf(statistic ?? "") ?? -1}
          onSelect={(index) => update({ statistic: metricInfo?.statistics[index] })}
        />
      </div>
      <fieldset class="segments">
        <legend class="field-label">{text.viewBy}</legend>
        {DIMENSIONS.map((dimension) => (
          <label key={dimension} class={dimension === state.dimension ? "on" : ""}>
            <input
              type="radio"
              name="dimension"
              checked={dimension === state.dimension}
              onChange={() => update({ dimension, zoom: undefined })}
            />
            {text.dimension[dimension]}
          </label>
        ))}
      </fieldset>
      <ValueControl {...props} />
      <fieldset class="colors">
        <legend>{text.color}</legend>
        <PlainSelect<ScaleKind>
          label={text.scale}
          name="scale"
          value={state.scale}
          options={text.scaleKind}
          onChange={(scale) => update({ scale })}
          hint={state.scale === "auto" ? props.scaleKind : undefined}
        />
        <PlainSelect<RangeKind>
          label={text.range}
          name="range"
          value={state.range}
          options={text.rangeKind}
          onChange={(range) => update({ range })}
        />
        <PlainSelect<PaletteKind>
          label={text.palette}
          name="palette"
          value={state.palette}
          options={text.paletteKind}
          onChange={(palette) => update({ palette })}
        />
      </fieldset>
      {props.slice && (
        <Legend slice={props.slice} dark={props.dark} palette={state.palette} onJump={props.onJump} />
      )}
      <p class="help">{text.mapHelp}</p>
    </form>
  );
}

function valueOptions(dimension: Dimension, dataset?: Dataset, list?: TargetList): Option[] {
  if (!dataset) return [];
  if (dimension === "step")
    return dataset.steps.step.map((_, index) => ({ label: stepLabel(dataset, index) }));
  if (dimension === "rank")
    return dataset.ranks.rank.map((_, index) => ({ label: rankLabel(dataset, index) }));
  return (list?.labels ?? []).map((label) => ({ label }));
}

function ValueControl({ state, dataset, list, index, selectIndex, playing, setPlaying }: Props) {
  const { dimension } = state;
  const options = useMemo(() => valueOptions(dimension, dataset, list), [dimension, dataset, list]);
  const last = options.length - 1;
  return (
    <div class="value-control">
      <Select
        name="value"
        label={`${text.value[dimension]} (${formatCount(options.length)})`}
        options={options}
        selected={index}
        onSelect={selectIndex}
      />
      <div class="value-steps">
        <button
          type="button"
          class="icon"
          aria-label={text.previous}
          title={text.previous}
          disabled={index <= 0}
          onClick={() => selectIndex(index - 1)}
        >
          <Icon shape="previous" />
        </button>
        <input
          type="range"
          aria-label={text.value[dimension]}
          min={0}
          max={Math.max(0, last)}
          value={Math.max(0, index)}
          disabled={last < 1}
          onInput={(event) => selectIndex(Number(event.currentTarget.value))}
        />
        <button
          type="button"
          class="icon"
          aria-label={text.next}
          title={text.next}
          disabled={index >= last}
          onClick={() => selectIndex(index + 1)}
        >
          <Icon shape="next" />
        </button>
        <button
          type="button"
          class="icon"
          aria-label={playing ? text.pause : text.play}
          title={playing ? text.pause : text.play}
          aria-pressed={playing}
          disabled={last < 1}
          onClick={() => setPlaying(!playing)}
        >
          <Icon shape={playing ? "pause" : "play"} />
        </button>
      </div>
    </div>
  );
}

// Drawn, since few fonts have these characters.
const SHAPES = {
  previous: "M10 3 5 8l5 5",
  next: "M6 3l5 5-5 5",
  play: "M4 2.5v11l9-5.5z",
  pause: "M4 3h3v10H4zM9 3h3v10H9z",
};

function Icon({ shape }: { shape: keyof typeof SHAPES }) {
  const filled = shape === "play" || shape === "pause";
  return (
    <svg
      viewBox="0 0 16 16"
      width="16"
      height="16"
      aria-hidden="true"
      fill={filled ? "currentColor" : "none"}
      stroke={filled ? "none" : "currentColor"}
      stroke-width="2"
    >
      <path d={SHAPES[shape]} />
    </svg>
  );
}

interface PlainSelectProps<T extends string> {
  label: string;
  name: string;
  value: T;
  options: Record<T, string>;
  onChange: (value: T) => void;
  hint?: string;
}

function PlainSelect<T extends string>({ label, name, value, options, onChange, hint }: PlainSelectProps<T>) {
  return (
    <label class="plain-select">
      <span>{label}</span>
      <select name={name} value={value} onChange={(event) => onChange(event.currentTarget.value as T)}>
        {(Object.keys(options) as T[]).map((key) => (
          <option key={key} value={key}>
            {options[key]}
            {key === value && hint !== undefined ? ` (${hint})` : ""}
          </option>
        ))}
      </select>
    </label>
  );
}

interface LegendProps {
  slice: Slice;
  dark: boolean;
  palette: PaletteKind;
  onJump: (state: State) => void;
}

function Legend({ slice, dark, palette, onJump }: LegendProps) {
  const { counts } = slice.summary;
  const colors = stateColors(dark, palette);
  const rows = [
    { state: State.NotANumber, key: "notANumber" },
    { state: State.PlusInfinity, key: "plusInfinity" },
    { state: State.MinusInfinity, key: "minusInfinity" },
    { state: State.Missing, key: "missing" },
  ] as const;
  return (
    <fieldset class="legend">
      <legend>{text.legend}</legend>
      {rows.map(({ state, key }) => (
        <div key={key} class={`legend-row${counts[state] > 0 && state !== State.Missing ? " alarming" : ""}`}>
          <span class={`chip ${key}`} style={{ background: css(colors[key]) }} />
          <span title={text.stateHelp[key]}>{text.state[key]}</span>
          <span class="legend-count" data-state={key}>
            {formatCount(counts[state])}
          </span>
          {counts[state] > 0 && state !== State.Missing ? (
            <button type="button" class="link" onClick={() => onJump(state)}>
              {text.jump}
            </button>
          ) : (
            <span />
          )}
        </div>
      ))}
      <div class="legend-row">
        <span />
        <span>{text.finite}</span>
        <span class="legend-count" data-state="number">
          {formatCount(counts[State.Number])}
        </span>
        <span />
      </div>
    </fieldset>
  );
}

/** Runs through the values while playing; waits for each map to arrive. */
export function usePlay(
  arrived: unknown,
  index: number,
  count: number,
  selectIndex: (index: number) => void,
) {
  const [playing, setPlaying] = useState(false);
  useEffect(() => {
    if (!playing) return undefined;
    const timer = setTimeout(() => {
      if (index + 1 < count) selectIndex(index + 1);
      else setPlaying(false);
    }, 250);
    return () => clearTimeout(timer);
  }, [playing, arrived]);
  return [playing, setPlaying] as const;
}
