// What a link restores. Everything that the page shows follows from it. An empty name: as the model has it.
const DEFAULTS = {
  id: "", page: 0, question: "", budget: 273, allocator: "", relevance: "", looks: "1", whole: true,
  against: "resize:", mode: "look", footprints: true, heat: false, channel: "", view: "",
};
const SHORT = {
  id: "id", page: "p", question: "q", budget: "b", allocator: "a", relevance: "r", looks: "l", whole: "w",
  against: "vs", mode: "m", footprints: "f", heat: "h", channel: "c", view: "v",
};

export const state = { ...DEFAULTS };

export function restore() {
  const found = new URLSearchParams(location.hash.slice(1));
  for (const [name, short] of Object.entries(SHORT)) {
    const text = found.get(short);
    if (text === null) continue;
    const like = typeof DEFAULTS[name];
    if (like === "number") { if (/^\d{1,6}$/.test(text)) state[name] = Number(text); }
    else if (like === "boolean") state[name] = text === "1";
    else state[name] = text;
  }
  if (!["look", "compare", "difference"].includes(state.mode)) state.mode = DEFAULTS.mode;
}

export function link() {
  const found = new URLSearchParams();
  for (const [name, short] of Object.entries(SHORT)) {
    const value = state[name];
    if (value !== DEFAULTS[name]) found.set(short, typeof value === "boolean" ? Number(value) : value);
  }
  return `${location.origin}${location.pathname}#${found}`;
}

let waiting = 0, written = location.hash;
export function remember() {
  clearTimeout(waiting);
  waiting = setTimeout(write, 200);
}

// Puts the link into the address bar, unless another one was put there: that one is opened.
export function write() {
  if (location.hash !== written) return;
  history.replaceState(null, "", link());
  written = location.hash;
}
addEventListener("hashchange", () => location.reload());
