// What is known of all samples, by row. The index is loaded first, the other columns when they are looked at.

let index;
let marks;
const SELECTED = 1, RESERVED = 2, FAR = 4;

async function loadIndex() {
  index = await load(manifest.index);
  marks = new Uint8Array(index.ids.length);
  for (const [name, mark] of [["selected", SELECTED], ["reserved", RESERVED], ["far", FAR]]) {
    for (const row of index[name]) marks[row] |= mark;
  }
}

/** `rank` (0: none) and `score` of every row under a ranking. */
const ranking = remembered((number) => load(index.rankings[number].file));

/** The last rank of a ranking's first ones: as many as are chosen, without the samples that cannot be. */
const cutRank = remembered(async (number) => {
  const { rank } = await ranking(number);
  const free = rank.filter((place, row) => place > 0 && !(marks[row] & RESERVED)).sort((a, b) => a - b);
  return free[Math.min(index.selected.length, free.length) - 1] ?? 0;
});

const disputes = remembered(() => load(index.disputed));

const unseenShares = remembered(() => new Map(index.unseen));

/** By row, the reasons for which tables turned it down. */
const rejections = remembered(async () => {
  const found = new Map();
  for (const [row, asset, reason] of await load(index.rejected)) {
    found.set(row, [...(found.get(row) ?? []), { asset, reason }]);
  }
  return found;
});

/** How each sample's instruction begins. */
const openings = remembered(async () => {
  const parts = await Promise.all(index.shards.map((shard) => load(shard.openings)));
  return parts.flat();
});

const rowsById = remembered(() => new Map(index.ids.map((id, row) => [id, row])));

/** All pages of samples: the file, and the rows from `first` up to `end` that it holds. */
const pages = remembered(() => {
  const found = [];
  let first = 0;
  for (const shard of index.shards) {
    shard.pages.forEach((file, number) => {
      const start = first + number * index.page_rows;
      found.push({ file, first: start, end: Math.min(start + index.page_rows, first + shard.rows) });
    });
    first += shard.rows;
  }
  return found;
});

const samplesOf = remembered((file) => load(file), 8);

/** A sample in full. */
async function sampleAt(row) {
  const all = pages();
  let low = 0, high = all.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (all[middle].end <= row) low = middle + 1;
    else high = middle;
  }
  return (await samplesOf(all[low].file))[row - all[low].first];
}
