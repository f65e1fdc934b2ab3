// One sample in full, beside the list.

let shownRow = null;

async function showSample(row) {
  shownRow = row;
  const panel = byId("sample");
  panel.hidden = false;
  document.body.classList.add("reading");
  const [sample, rejected, unseen, ...ranks] = await Promise.all([
    sampleAt(row), rejections(), unseenShares(), ...index.rankings.map((_, number) => ranking(number)),
  ]);
  if (shownRow !== row) return; // another one was asked for in the meantime
  panel.replaceChildren(
    sampleHead(row),
    facts(row, unseen.get(row), ranks[state.ranking]),
    ...(rejected.get(row) ?? []).map(({ asset, reason }) =>
      make("p", { class: "note" }, make("code", {}, asset), ` turned it down: ${reason}`)),
    ...passages(sample).filter((part) => part !== null),
    ...strips(sample),
    ranksTable(row, ranks),
  );
  panel.scrollTop = 0;
  markRow(row);
}

function sampleHead(row) {
  return make("header", {},
    make("h2", { id: "sample-title", tabindex: "-1" }, isolated(index.ids[row])),
    make("p", { class: "tags" }, ...tagsOf(row)),
    make("p", { class: "moves" },
      make("button", { type: "button", onclick: () => step(-1), title: "Key: k" }, "Previous"),
      make("button", { type: "button", onclick: () => step(1), title: "Key: j" }, "Next"),
      make("button", { type: "button", onclick: closeSample, title: "Key: Escape" }, "Close")));
}

/** Tags of a row: what became of it. */
function tagsOf(row) {
  return [
    [SELECTED, "selected", "sel"], [FAR, "needs far context", "far"], [RESERVED, "reserved for evaluation", ""],
  ].filter(([mark]) => marks[row] & mark).map(([, text, kind]) => tag(text, kind));
}

/** `0.5 · long-model gain 0.421 + 0.5 · far-segment gain 0.2`, where the ranking's score is such a sum. */
function sumOf(row, { names, weights, instead }, { first, second }) {
  const term = (place, value) => `${shown(weights[place])} · ${names[place]} ${shown(value)}`;
  return `${term(0, first[row])} + ${second[row] === null ? shown(instead) : term(1, second[row])}`;
}

function facts(row, unseen, columns) {
  const { rank, score } = columns;
  const { name, scored, summands } = index.rankings[state.ranking];
  const found = [
    [`rank by ${name}`, rank[row] ? `${whole.format(rank[row])} of ${whole.format(scored)}` : "no score"],
    ["score", shown(score[row])],
    ...(summands && rank[row] ? [["its sum", sumOf(row, summands, columns)]] : []),
    ["source", isolated(index.sources[index.source[row]])],
    [`context ${index.unit}`, shown(index.context[row])],
    [`response ${index.unit}`, shown(index.response[row])],
  ];
  if (unseen) found.push(["seen by no model", `${percent(unseen)} of the context`]);
  return make("dl", {}, ...found.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

function ranksTable(row, columns) {
  const rows = index.rankings.map(({ name, title, scored }, number) => {
    const { rank, score } = columns[number];
    const place = rank[row] ? `${whole.format(rank[row])} of ${whole.format(scored)}` : "no score";
    return make("tr", {},
      make("th", { scope: "row", title }, name),
      make("td", { class: "n" }, place),
      make("td", { class: "rail" }, rank[row] ? bar(1 - (rank[row] - 1) / scored) : ""),
      make("td", { class: "n" }, shown(score[row])));
  });
  return make("table", { class: "ranks" },
    make("caption", {}, "Ranks and scores"),
    make("thead", {}, make("tr", {},
      make("th", { scope: "col" }, "ranking"), make("th", { scope: "col", class: "n" }, "rank"),
      make("td", {}), make("th", { scope: "col", class: "n" }, "score"))),
    make("tbody", {}, ...rows));
}

function closeSample() {
  const row = shownRow;
  shownRow = null;
  byId("sample").hidden = true;
  document.body.classList.remove("reading");
  history.replaceState(null, "", location.pathname + location.search);
  markRow(null);
  linkOf(row)?.focus();
}
