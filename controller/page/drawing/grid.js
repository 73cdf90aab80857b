// Tables of numbers as the controller sends them, row by row, or as parse_worker.js packs large ones. Pure.

/** @import { Table } from "../base/api.js" */

/** A number of a table; NaN where it is not known.
 * @param {Table} table @param {number} row @param {number} column */
export function cell(table, row, column) {
  const value = Array.isArray(table) ? table[row][column] : table.flat[row * table.width + column];
  return value ?? NaN;
}

/** Whether a column holds any number at all.
 * @param {Table} table @param {number} rows @param {number} column */
export function isKnown(table, rows, column) {
  for (let row = 0; row < rows; row++) if (!Number.isNaN(cell(table, row, column))) return true;
  return false;
}
