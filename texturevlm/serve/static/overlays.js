// What is laid over the original: relevance, a channel, the attention of the model.
import { bitmap, newest, postJson } from "./api.js";
import { busy } from "./status.js";
import { state } from "./state.js";
import { markChannel } from "./strip.js";

const onlyHeat = newest(), onlyChannel = newest(), onlyAttention = newest();

// trail: of a gaze, as text
export async function updateHeat(pane, image, patch, trail) {
  let found = null;
  if (image && state.heat) {
    const { id, page, question, relevance } = state;
    const query = new URLSearchParams({ page, question, relevance, patch, trail });
    found = await busy(() => onlyHeat((signal) => bitmap(`/api/relevance/${id}.png?${query}`, signal)));
    if (!found) return;
  }
  pane.relevance = found;
  pane.draw();
}

export async function updateChannel(pane, shelf, image, trail) {
  markChannel(shelf, state.channel);
  let found = null;
  if (image && state.channel && (state.channel !== "gaze" || trail)) {
    const query = new URLSearchParams({ page: state.page, ...(state.channel === "gaze" ? { trail } : {}) });
    const path = `/api/channels/${image.id}/${encodeURIComponent(state.channel)}.jpg?${query}`;
    found = await busy(() => onlyChannel((signal) => bitmap(path, signal)));
    if (!found) return;
  }
  pane.channel = found;
  pane.draw();
}

// It costs a pass through half of the model: asked for after the plan is drawn. Returns whether it belongs to the plan.
export async function updateAttention(plan, asked) {
  const found = await busy(() => onlyAttention((signal) => postJson("/api/attention", asked, signal)));
  if (!found || found.attention.length !== plan.used) return false;
  plan.attention = found.attention;
  return true;
}
