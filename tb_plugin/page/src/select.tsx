// A selector with a search field. Its list is drawn for the visible part only: it may hold 50,000 modules.

import { useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

import { formatCount } from "./format";
import { text } from "./messages";

export interface Option {
  label: string;
  /** Shown at the right, in a weaker color. */
  hint?: string;
}

interface Props {
  label: string;
  options: Option[];
  selected: number;
  onSelect: (index: number) => void;
  disabled?: boolean;
  /** For tests and styles. */
  name: string;
}

const ROW_HEIGHT = 26;
const MAX_ROWS = 14;

/** Indices of the options that hold every word of the query, in any order and case. */
export function searchOptions(options: Option[], query: string): number[] {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const found: number[] = [];
  options.forEach((option, index) => {
    const label = option.label.toLowerCase();
    if (words.every((word) => label.includes(word))) found.push(index);
  });
  return found;
}

export function Select({ label, options, selected, onSelect, disabled, name }: Props) {
  const [open, setOpen] = useState(false);
  const button = useRef<HTMLButtonElement>(null);
  const id = useId();
  const current = options[selected] as Option | undefined;
  return (
    <div class="field">
      <span class="field-label" id={`${id}-label`}>
        {label}
      </span>
      <button
        ref={button}
        type="button"
        class="select"
        data-name={name}
        aria-labelledby={`${id}-label ${id}-value`}
        aria-haspopup="listbox"
        aria-expanded={open}
        disabled={disabled === true || options.length === 0}
        title={current?.label}
        onClick={() => setOpen(!open)}
        onKeyDown={(event) => {
          if (event.key === "ArrowDown" || event.key === "ArrowUp") {
            event.preventDefault();
            setOpen(true);
          }
        }}
      >
        <span class="select-value" id={`${id}-value`}>
          <bdi>{current?.label ?? "–"}</bdi>
        </span>
        <span aria-hidden="true">▾</span>
      </button>
      {open && button.current && (
        <Popup
          anchor={button.current}
          label={label}
          options={options}
          selected={selected}
          onClose={(index) => {
            setOpen(false);
            button.current?.focus();
            if (index !== undefined && index !== selected) onSelect(index);
          }}
        />
      )}
    </div>
  );
}

interface PopupProps {
  anchor: HTMLElement;
  label: string;
  options: Option[];
  selected: number;
  onClose: (index?: number) => void;
}

function Popup({ anchor, label, options, selected, onClose }: PopupProps) {
  const [query, setQuery] = useState("");
  const found = useMemo(() => searchOptions(options, query), [options, query]);
  const [active, setActive] = useState(selected);
  const [scroll, setScroll] = useState(0);
  const list = useRef<HTMLDivElement>(null);
  const input = useRef<HTMLInputElement>(null);
  const popup = useRef<HTMLDivElement>(null);
  const id = useId();
  const position = Math.max(0, found.indexOf(active));
  const visible = Math.min(MAX_ROWS, Math.max(1, found.length));
  const searchable = options.length > 6;

  useEffect(() => {
    (searchable ? input.current : list.current)?.focus();
    const outside = (event: Event) => {
      if (!popup.current?.contains(event.target as Node) && !anchor.contains(event.target as Node)) onClose();
    };
    document.addEventListener("pointerdown", outside);
    window.addEventListener("blur", outside);
    return () => {
      document.removeEventListener("pointerdown", outside);
      window.removeEventListener("blur", outside);
    };
  }, []);

  useLayoutEffect(() => {
    const element = list.current;
    if (!element) return;
    const top = position * ROW_HEIGHT;
    if (top < element.scrollTop || top + ROW_HEIGHT > element.scrollTop + element.clientHeight) {
      element.scrollTop = Math.max(0, top - element.clientHeight / 2);
    }
  }, [position, found]);

  const move = (to: number) => {
    if (found.length > 0) setActive(found[Math.min(found.length - 1, Math.max(0, to))]);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const steps: Record<string, number> = {
      ArrowDown: position + 1,
      ArrowUp: position - 1,
      PageDown: position + visible,
      PageUp: position - visible,
    };
    if (event.key in steps) move(steps[event.key]);
    else if (event.key === "Enter") onClose(found[position]);
    else if (event.key === "Escape" || event.key === "Tab") onClose();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };

  const box = anchor.getBoundingClientRect();
  const longest = options.reduce(
    (length, option) => Math.max(length, option.label.length + (option.hint?.length ?? 0)),
    0,
  );
  const width = Math.min(window.innerWidth - 16, Math.max(box.width, Math.min(760, longest * 7.2 + 48)));
  const height = visible * ROW_HEIGHT + (searchable ? 66 : 10);
  const below = window.innerHeight - box.bottom;
  const style = {
    left: `${Math.max(8, Math.min(box.left, window.innerWidth - width - 8))}px`,
    top: `${below >= height + 8 || below > box.top ? box.bottom + 2 : Math.max(8, box.top - height - 2)}px`,
    width: `${width}px`,
  };
  const firstRow = Math.max(0, Math.floor(scroll / ROW_HEIGHT) - 4);
  const rows = found.slice(firstRow, firstRow + MAX_ROWS + 8);
  return (
    <div class="popup" ref={popup} style={style} onKeyDown={onKeyDown}>
      {searchable && (
        <div class="popup-search">
          <input
            ref={input}
            type="text"
            role="combobox"
            aria-expanded="true"
            aria-controls={`${id}-list`}
            aria-activedescendant={found.length > 0 ? `${id}-${found[position]}` : undefined}
            aria-label={`${text.search}: ${label}`}
            placeholder={text.search}
            value={query}
            onInput={(event) => {
              const value = event.currentTarget.value;
              setQuery(value);
              const matches = searchOptions(options, value);
              if (matches.length > 0 && !matches.includes(active)) setActive(matches[0]);
            }}
          />
          <span class="popup-count">
            {text.matches(formatCount(found.length), formatCount(options.length))}
          </span>
        </div>
      )}
      <div
        ref={list}
        id={`${id}-list`}
        class="popup-list"
        role="listbox"
        aria-label={label}
        tabIndex={searchable ? -1 : 0}
        style={{ maxHeight: `${MAX_ROWS * ROW_HEIGHT}px` }}
        onScroll={(event) => setScroll(event.currentTarget.scrollTop)}
      >
        {found.length === 0 && <div class="popup-empty">{text.noMatch}</div>}
        <div style={{ height: `${found.length * ROW_HEIGHT}px`, position: "relative" }}>
          {rows.map((index, offset) => (
            <div
              key={index}
              id={`${id}-${index}`}
              role="option"
              aria-selected={index === selected}
              class={`option${index === found[position] ? " active" : ""}`}
              style={{ top: `${(firstRow + offset) * ROW_HEIGHT}px`, height: `${ROW_HEIGHT}px` }}
              title={options[index].label}
              onPointerMove={() => setActive(index)}
              onClick={() => onClose(index)}
            >
              <span class="option-label">{options[index].label}</span>
              {options[index].hint !== undefined && <span class="option-hint">{options[index].hint}</span>}
            </div>
          ))}
        </div>
      </div>
    </div>
  );
}
