// What is laid over the original: relevance, a channel, the attention of the model.
import { bitmap, newest, postJson } from "./api.js";
import { busy } from "./status.js";
import { state } from "./state.js";
import { channelOf, markChannel } from "./strip.js";

const onlyHeat = newest(), onlyChannel = newest(), onlyAttention = newest();

// asked: as for a plan
export async function updateHeat(pane, image, asked) {
  let found = null;
  if (image && state.heat) {
    found = await busy(() => onlyHeat((signal) => bitmap("/api/relevance", signal, asked)));
    if (!found) return;
  }
  pane.relevance = found;
  pane.draw();
}

export async function updateChannel(pane, shelf, image, asked) {
  markChannel(shelf, state.channel);
  let found = null;
  if (image && state.channel && (state.channel !== "gaze" || asked.trail?.length)) {
    found = await busy(() => onlyChannel((signal) => bitmap(...channelOf(image, state.channel, asked, signal))));
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
