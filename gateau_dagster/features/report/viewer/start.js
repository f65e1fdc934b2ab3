// Controls, keys and addresses, and the first look.

function fillControls() {
  const option = (value, text) => make("option", { value }, text);
  byId("ranking").append(...index.rankings.map(({ name }, number) => option(number, name)));
  byId("source").append(...index.sources.map((name, number) => option(number, name)));
  byId("source").parentElement.hidden = index.sources.length < 2;
  byId("ranking").parentElement.hidden = index.rankings.length < 2;
  if (!index.disputed) byId("order").querySelector("[value=disputed]").remove();
  for (const [value, list] of [["far", index.far], ["reserved", index.reserved]]) {
    if (!list.length) byId("choice").querySelector(`[value=${value}]`).remove();
  }
  const depends = Object.keys(index.depends).map((name) => option(`depends ${name}`, name));
  if (depends.length) byId("choice").append(make("optgroup", { label: "The response depends on" }, ...depends));
  byId("unit").textContent = index.unit;
  byId("response-unit").textContent = byId("lengths-unit").textContent = index.unit;
}

function readControls() {
  const number = (id) => (byId(id).value === "" ? null : Number(byId(id).value));
  Object.assign(state, {
    order: byId("order").value, ranking: Number(byId("ranking").value), source: number("source"),
    choice: byId("choice").value, low: number("low"), high: number("high"),
    responseLow: number("response-low"), responseHigh: number("response-high"), page: 0,
  });
  for (const head of document.querySelectorAll("[data-orders]")) {
    if (!head.dataset.orders.split(" ").includes(state.order)) head.removeAttribute("aria-sort");
    else head.setAttribute("aria-sort", ["longest", "response"].includes(state.order) ? "descending" : "ascending");
  }
  if (state.text !== byId("text").value) Object.assign(state, { text: byId("text").value, found: null });
  byId("all-texts").disabled = !state.text.trim();
  byId("about").textContent = index.rankings[state.ranking]?.title ?? "";
}

/** Sorts by a column; a second click on a column of lengths turns the order round. */
function sortBy(head) {
  const orders = head.dataset.orders.split(" ");
  byId("order").value = orders[(orders.indexOf(state.order) + 1) % orders.length];
}

let searching = null;

async function searchAll() {
  if (searching) return void (searching.stopped = true);
  const search = (searching = { stopped: false });
  byId("all-texts").textContent = "Stop searching";
  const found = await searchTexts(state.text.trim(), (done, all, count) => {
    announce(`Searched ${percent(done / all)}: ${plural(count, "sample")} found`);
    byId("where").textContent = byId("status").textContent;
    return !search.stopped;
  });
  searching = null;
  byId("all-texts").textContent = "Search whole texts";
  state.found = found;
  await refresh();
}

/** The sample that the address names; a later one wins. */
async function followAddress() {
  const id = decodeURIComponent(location.hash.slice(1));
  if (!id) return;
  const row = rowsById().get(id);
  if (row === undefined) throw new Error(`There is no sample ${id} here.`);
  byId("failure").hidden = true;
  await showSample(row);
}

const KEYS = {
  j: () => step(1), k: () => step(-1), n: () => jump("after"), p: () => jump("before"),
  "/": () => byId("text").focus(), Escape: () => closeSample(),
};

function pressKey(event) {
  const typing = event.target.matches("input, select");
  if (event.ctrlKey || event.metaKey || event.altKey || (typing && event.key !== "Escape")) return;
  if (typing) return void event.target.blur();
  if (!(event.key in KEYS) || (event.key === "Escape" && shownRow === null)) return;
  event.preventDefault();
  guarded(KEYS[event.key])();
}

/** What fails is said in the page. */
const guarded = (work) => async (...given) => {
  try {
    await work(...given);
  } catch (error) {
    explainFailure(error);
  }
};

function listen() {
  const changed = guarded(async () => { readControls(); await refresh(); byId("list").scrollTop = 0; });
  let pause;
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("controls").addEventListener("change", changed);
  byId("controls").addEventListener("reset", () => setTimeout(changed));
  byId("text").addEventListener("input", () => { clearTimeout(pause); pause = setTimeout(changed, 150); });
  byId("all-texts").addEventListener("click", guarded(searchAll));
  for (const head of document.querySelectorAll("[data-orders]")) {
    head.firstChild.addEventListener("click", () => { sortBy(head); changed(); });
  }
  for (const button of document.querySelectorAll("[data-jump]")) {
    button.addEventListener("click", guarded(() => jump(button.dataset.jump)));
  }
  window.addEventListener("hashchange", guarded(followAddress));
  document.addEventListener("keydown", pressKey);
}

guarded(async () => {
  await loadIndex();
  fillControls();
  readControls();
  listen();
  await refresh();
  document.documentElement.dataset.ready = "true";
  await followAddress();
})();
