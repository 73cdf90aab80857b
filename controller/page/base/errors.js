// The text of what was thrown.

/** @param {unknown} error */
export const messageOf = (error) => (error instanceof Error ? error.message : String(error));
