// A box drawn by the user: what OCR reads in it, as it is delivered and in the original.
import { newest, postJson } from "./api.js";

const only = newest();

// tell(text, alike) shows the result; request() makes the body without the box.
export function listenToBoxes(panes, wanted, request, tell) {
  for (const pane of panes) {
    let from = null;
    pane.view.addEventListener("pointerdown", (event) => {
      from = wanted() && pane.plan ? pane.pointOf(event) : null;
      if (from) pane.view.setPointerCapture(event.pointerId);
    });
    pane.view.addEventListener("pointermove", (event) => {
      const to = from && pane.pointOf(event);
      if (!to) return;
      for (const one of panes) { one.box = [Math.min(from.x, to.x), Math.min(from.y, to.y), Math.max(from.x, to.x), Math.max(from.y, to.y)]; one.draw(); }
    });
    pane.view.addEventListener("pointerup", () => {
      if (!from) return;
      from = null;
      if (pane.box) read(pane.box, request(), tell);
    });
  }
}

async function read(box, request, tell) {
  tell("Reading …");
  try {
    const found = await only((signal) => postJson("/api/read", { ...request, box }, signal));
    if (!found) return;
    const quoted = (text) => (text ? `“${text}”` : "nothing");
    const same = found.seen === found.original;
    tell(same ? `Delivered as in the original: ${quoted(found.seen)}` : `Delivered: ${quoted(found.seen)}\nOriginal: ${quoted(found.original)}`, found.alike);
  } catch (error) {
    tell(error.message);
  }
}
