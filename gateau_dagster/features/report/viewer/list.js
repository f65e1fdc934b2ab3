// The list: a page of rows at a time, in the order and of the choice that the controls say.

const ROWS = 50;
const state = {
  order: "rank", ranking: 0, source: null, choice: "all", low: null, high: null, responseLow: null, responseHigh: null,
  text: "", found: null, page: 0,
};
let rows = new Uint32Array();
let asked = 0;

/** Looks up what `state` asks for and shows its page; a later call overtakes an earlier one. */
async function refresh() {
  const turn = ++asked;
  const found = await listed(state);
  if (turn !== asked) return;
  rows = found;
  await showRows(turn);
}

const pageCount = () => Math.max(1, Math.ceil(rows.length / ROWS));

async function showRows(turn = asked) {
  state.page = Math.min(Math.max(state.page, 0), pageCount() - 1);
  const first = state.page * ROWS;
  const shownRows = rows.subarray(first, first + ROWS);
  const [columns, spread, cut] = await Promise.all([
    ranking(state.ranking), state.order === "disputed" ? disputes() : null, cutRank(state.ranking),
  ]);
  if (turn !== asked) return;
  const body = byId("rows");
  body.replaceChildren(...[...shownRows].flatMap((row, place) => {
    const line = rowOf(row, columns, spread);
    return isCut(first + place, columns, cut) ? [line, cutLine()] : [line];
  }));
  byId("score-name").textContent = spread ? "disputed" : "score";
  byId("where").textContent = rows.length
    ? `${whole.format(first + 1)}–${whole.format(first + shownRows.length)} of ${plural(rows.length, "sample")}`
    : "No sample is like that.";
  byId("before").disabled = state.page === 0;
  byId("after").disabled = state.page >= pageCount() - 1;
  for (const button of document.querySelectorAll("[data-jump=cut]")) button.disabled = state.order !== "rank";
  announce(byId("where").textContent);
  markRow(shownRow);
  addOpenings(shownRows);
}

function rowOf(row, { rank, score }, spread) {
  return make("tr", { "data-row": row },
    make("td", { class: "n rank" }, rank[row] ? whole.format(rank[row]) : "–"),
    make("td", { class: "id" },
      make("a", { href: addressOf(row) }, isolated(index.ids[row])), " ", ...tagsOf(row),
      make("span", { class: "opening" })),
    make("td", { class: "source" }, isolated(index.sources[index.source[row]])),
    make("td", { class: "n context" }, shown(index.context[row])),
    make("td", { class: "n response" }, shown(index.response[row])),
    make("td", { class: "n score" }, shown(spread ? spread[row] : score[row])));
}

/** How the instructions begin comes later: the list does not wait for it. */
async function addOpenings(shownRows) {
  const texts = await openings();
  for (const row of shownRows) {
    const place = byId("rows").querySelector(`[data-row="${row}"] .opening`);
    if (place) place.textContent = texts[row];
  }
}

/** Whether the border of what is chosen follows this place of the list. */
function isCut(place, { rank }, cut) {
  const isFirst = (row) => rank[row] > 0 && rank[row] <= cut;
  return state.order === "rank" && isFirst(rows[place]) && place + 1 < rows.length && !isFirst(rows[place + 1]);
}

const cutLine = () =>
  make("tr", { class: "cutline" },
    make("td", { colspan: "6" }, `As many as are chosen: ${plural(index.selected.length, "sample")}`));

const addressOf = (row) => `#${encodeURIComponent(index.ids[row])}`;
const linkOf = (row) => byId("rows").querySelector(`[data-row="${row}"] a`);

function markRow(row) {
  for (const line of byId("rows").querySelectorAll("[aria-current]")) line.removeAttribute("aria-current");
  byId("rows").querySelector(`[data-row="${row}"]`)?.setAttribute("aria-current", "true");
}

async function jump(where) {
  if (where === "cut") {
    const [{ rank }, cut] = await Promise.all([ranking(state.ranking), cutRank(state.ranking)]);
    const place = rows.findIndex((row) => !rank[row] || rank[row] > cut);
    state.page = Math.floor(Math.max(0, (place < 0 ? rows.length : place) - 1) / ROWS);
  } else {
    state.page = { first: 0, before: state.page - 1, after: state.page + 1, last: pageCount() - 1 }[where];
  }
  await showRows();
  byId("list").scrollTop = 0;
  if (where === "cut") byId("rows").querySelector(".cutline")?.scrollIntoView({ block: "center" });
}

/** Opens the sample before or after the one that is open, in the order of the list. */
async function step(by) {
  const place = rows.indexOf(shownRow ?? -1);
  const next = shownRow === null || place < 0 ? rows[state.page * ROWS] : rows[place + by];
  if (next === undefined) return;
  const page = Math.floor(rows.indexOf(next) / ROWS);
  if (page !== state.page) {
    state.page = page;
    await showRows();
  }
  location.replace(addressOf(next));
  linkOf(next)?.scrollIntoView({ block: "nearest" });
}
