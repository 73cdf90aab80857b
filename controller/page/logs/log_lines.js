// What a line of a log looks like, and whether a search finds it. Pure.

const BAD = /\b(?:ERROR|CRITICAL|FATAL|PANIC)\b|^(?:\[rank\d+\]: ?)?(?:Traceback |(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception)\b)|(?:^|\])\[?[EF]\d{4}[ \d]/;
const WARN = /\b(?:WARN|WARNING)\b|Warning: |(?:^|\])\[?W\d{4}[ \d]/;

/** How it is drawn: bad, warn or plain. Which lines come is decided by the controller.
 * @param {string} text */
export const levelShown = (text) => (BAD.test(text.slice(0, 160)) ? "bad" : WARN.test(text.slice(0, 200)) ? "warn" : "");

/** {matches: text -> whether it is found, error}: a regular expression, or where it is none, the words themselves.
 * @param {string} search @returns {{ matches: (text: string) => boolean, error: string }} */
export function matcher(search) {
  if (!search) return { matches: () => true, error: "" };
  try {
    const pattern = new RegExp(search, "i");
    return { matches: (text) => pattern.test(text), error: "" };
  } catch {
    const words = search.toLowerCase();
    return { matches: (text) => text.toLowerCase().includes(words), error: "no regular expression: the words themselves are searched" };
  }
}
