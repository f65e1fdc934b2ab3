// Data files. A page that is opened from a disk can load scripts and nothing else, so each file is one, and hands over
// what is in it by calling explorer.take.

const manifest = JSON.parse(document.getElementById("manifest").textContent);
const awaited = new Map();
const inFlight = new Map();

window.explorer = {
  take(name, content) {
    awaited.get(name)?.(content);
    awaited.delete(name);
  },
};

/** The content of a data file; asked for twice at once, it is loaded once. */
function load(name) {
  if (!inFlight.has(name)) {
    inFlight.set(name, loadNow(name).finally(() => inFlight.delete(name)));
  }
  return inFlight.get(name);
}

function loadNow(name) {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    const failed = () => {
      awaited.delete(name);
      script.remove();
      reject(new Error(`explore/${name} is missing or damaged. If a run has rebuilt this page, reload it. If you copied ` +
        "the page, copy the folder explore beside it, too. Otherwise gateau run repairs the file."));
    };
    awaited.set(name, resolve);
    script.src = `explore/${name}`;
    script.onerror = failed;
    script.onload = () => (awaited.has(name) ? failed() : script.remove());
    document.head.append(script);
  });
}

/** `make(key)`, made once for each key while it is among the `most` last ones asked for. */
function remembered(make, most = Infinity) {
  const found = new Map();
  return (key) => {
    const known = found.get(key) ?? make(key);
    found.delete(key);
    found.set(key, known);
    Promise.resolve(known).catch(() => found.delete(key));
    if (found.size > most) found.delete(found.keys().next().value);
    return known;
  };
}
