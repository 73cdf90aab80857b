// Reads large answers beside the page's own thread, which has a frame to draw: 12,288 ranks are a megabyte of JSON.
// Long columns of numbers come back as Float64Array, with NaN for what is not known, and tables of many rows as
// {width, flat} (see grid.js); they are handed over, not copied.

const LONG = 256;

// A worker's own global, which the types of pages do not know.
const answer = /** @type {(message: any, handed?: Transferable[]) => void} */ (/** @type {unknown} */ (postMessage));

onmessage = ({ data: { id, buffer } }) => {
  try {
    /** @type {Float64Array<ArrayBuffer>[]} */
    const columns = [];
    const value = packed(JSON.parse(new TextDecoder().decode(buffer)), columns);
    answer(
      { id, value },
      columns.map((column) => column.buffer),
    );
  } catch (error) {
    answer({ id, error: error instanceof Error ? error.message : String(error) });
  }
};

/* oxlint-disable no-implicit-globals -- a worker of its own, not a module */
/** @param {any} value @param {Float64Array<ArrayBuffer>[]} columns @returns {any} */
function packed(value, columns) {
  if (Array.isArray(value)) {
    if (value.length > LONG && numbers(value)) return column(value, columns);
    if (
      value.length > LONG &&
      value.every((row) => Array.isArray(row) && row.length === value[0].length && numbers(row))
    ) {
      return { width: value[0].length, flat: column(value.flat(), columns) };
    }
    return value.map((each) => packed(each, columns));
  }
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, packed(each, columns)]));
}

/** @param {any[]} values */
const numbers = (values) => values.every((each) => each === null || typeof each === "number");

/** @param {(number | null)[]} values @param {Float64Array<ArrayBuffer>[]} columns */
function column(values, columns) {
  const made = Float64Array.from(values, (each) => each ?? NaN);
  columns.push(made);
  return made;
}
