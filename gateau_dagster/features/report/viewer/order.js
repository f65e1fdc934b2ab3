// Which samples are listed, and in what order.

/** All rows by rank; those without one are last. */
function byRank(rank) {
  const found = new Uint32Array(rank.length);
  const scored = rank.reduce((count, place) => count + (place > 0 ? 1 : 0), 0);
  let last = scored;
  rank.forEach((place, row) => (found[place > 0 ? place - 1 : last++] = row));
  return found;
}

/** All rows, the largest value first, or the smallest; where there is none, last. */
function byValue(values, largestFirst = true) {
  const none = largestFirst ? -Infinity : Infinity;
  const keys = Float64Array.from(values, (value) => value ?? none);
  const rows = Uint32Array.from(keys, (_, row) => row);
  return rows.sort((a, b) => (largestFirst ? keys[b] - keys[a] : keys[a] - keys[b]) || a - b || 0);
}

/** For each row, the place of its name among all names in alphabetical order. */
function alphabeticalPlaces(names, numbers) {
  const places = new Map([...names.keys()].sort((a, b) => (names[a] < names[b] ? -1 : 1)).map((name, place) => [name, place]));
  return numbers.map((number) => places.get(number));
}

const ORDERS = {
  rank: async (state) => byRank((await ranking(state.ranking)).rank),
  disputed: async () => byValue(await disputes()),
  longest: async () => byValue(index.context),
  shortest: async () => byValue(index.context, false),
  response: async () => byValue(index.response),
  briefest: async () => byValue(index.response, false),
  source: async () => byValue(alphabeticalPlaces(index.sources, index.source), false),
  id: async () => Uint32Array.from(index.ids.keys()).sort((a, b) => (index.ids[a] < index.ids[b] ? -1 : 1)),
};

const ordered = remembered((key) => {
  const [order, number] = key.split("/");
  return ORDERS[order]({ ranking: Number(number) });
}, 4);

const CHOICES = {
  all: () => true,
  selected: (row) => marks[row] & SELECTED,
  rest: (row) => !(marks[row] & SELECTED),
  reserved: (row) => marks[row] & RESERVED,
  far: (row) => marks[row] & FAR,
  unscored: (row, rank) => !rank[row],
};

const dependingOn = (name) => {
  const rows = new Set(index.depends[name]);
  return (row) => rows.has(row);
};

/** The rows that `state` asks for, in its order. */
async function listed(state) {
  const rows = await ordered(`${state.order}/${state.order === "rank" ? state.ranking : 0}`);
  const { rank } = await ranking(state.ranking);
  const wanted = state.text.trim().toLowerCase();
  const texts = wanted ? await openings() : null;
  const [kind, name] = state.choice.split(" ");
  const chosen = kind === "depends" ? dependingOn(name) : CHOICES[kind];
  const within = (length, low, high) => (low === null || length >= low) && (high === null || length <= high);
  const spoken = (row) =>
    state.found?.has(row) ||
    index.ids[row].toLowerCase().includes(wanted) || texts[row].toLowerCase().includes(wanted);
  return rows.filter((row) =>
    (state.source === null || index.source[row] === state.source) &&
    chosen(row, rank) && (!wanted || spoken(row)) &&
    within(index.context[row] ?? 0, state.low, state.high) &&
    within(index.response[row] ?? 0, state.responseLow, state.responseHigh));
}

/** Rows whose texts hold `wanted`, page by page; `progress` is told how far it is and says whether to go on. */
async function searchTexts(wanted, progress) {
  const found = new Set(), small = wanted.toLowerCase(), all = pages();
  for (const [done, page] of all.entries()) {
    if (!progress(done, all.length, found.size)) break;
    // Not kept: all pages together may be larger than the memory.
    const samples = await load(page.file);
    samples.forEach((sample, place) => {
      if (textOf(sample).toLowerCase().includes(small)) found.add(page.first + place);
    });
  }
  return found;
}
