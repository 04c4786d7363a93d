/** Finds entries of the command palette by parts of their names. */

const MOST = 50;

export interface Findable {
  name: string;
  note: string;
  /** Other words that find the entry. */
  words?: string;
}

const WORD = /[^\p{L}\p{N}]+/u;

/** Ranks a match of one word. Better: the name's start, a word's start, inside the name, inside the note. */
function rankOf({ name, note, words = "" }: Findable, word: string): number {
  const text = name.toLowerCase();
  if (text.startsWith(word)) return 0;
  if (text.split(WORD).some((one) => one.startsWith(word))) return 1;
  if (text.includes(word)) return 2;
  return `${note} ${words}`.toLowerCase().includes(word) ? 3 : Infinity;
}

/** Whether a name has all letters of the text in this order. */
function isScattered(name: string, letters: string): boolean {
  let at = -1;
  for (const letter of letters) {
    at = name.indexOf(letter, at + 1);
    if (at < 0) return false;
  }
  return true;
}

/** Entries with every word of the text, best first. Without any, entries with its letters in order. */
export function found<T extends Findable>(all: readonly T[], wanted: string): T[] {
  const sought = wanted.trim().toLowerCase();
  if (!sought) return all.slice(0, MOST);
  const words = sought.split(/\s+/);
  const direct = all
    .map((entry) => ({ entry, rank: Math.max(...words.map((word) => rankOf(entry, word))) }))
    .filter((one) => one.rank < Infinity)
    .sort((a, b) => a.rank - b.rank)
    .map((one) => one.entry);
  const matches = direct.length ? direct : all.filter((entry) => isScattered(entry.name.toLowerCase(), sought));
  return matches.slice(0, MOST);
}
