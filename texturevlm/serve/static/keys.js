// Keys, as the dialog "Keyboard" lists them.
const at = (id) => document.getElementById(id);
const MODES = { 1: "look", 2: "compare", 3: "difference" };
const CLICKS = { f: "show-footprints", r: "show-relevance", a: "show-attention", g: "show-gaze", b: "show-box", c: "open-channels", o: "file" };

export function listen({ setMode, zoom, turnPage, changeTheme, step, play }) {
  const actions = {
    "/": () => at("question").focus(), "?": () => at("help").showModal(), t: changeTheme, p: play,
    "[": () => step(-40), "]": () => step(40), "+": () => zoom(1.4), "=": () => zoom(1.4), "-": () => zoom(1 / 1.4), 0: () => zoom(0),
    PageUp: () => turnPage(-1), PageDown: () => turnPage(1),
  };
  addEventListener("keydown", (event) => {
    const typing = event.target.matches("input[type=text], select") || at("help").open;
    if (event.key === "Escape" && event.target.matches("input[type=text]")) event.target.blur();
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (MODES[key]) setMode(MODES[key]);
    else if (CLICKS[key]) at(CLICKS[key]).click();
    else if (actions[key]) actions[key]();
    else return;
    event.preventDefault();
  });
}
