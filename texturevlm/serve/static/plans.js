// Plans as the server makes them, ready to be drawn and described.
import { postJson } from "./api.js";
import { plansOf } from "./clip.js";
import { levelRange, ordered } from "./paint.js";

async function drawn(found, signal) {
  const blob = await (await fetch(found.atlas.url, { signal })).blob();
  found.atlas.image = await createImageBitmap(blob);
  return found;
}

export async function planned(request, signal) {
  const found = await drawn(await postJson("/api/plan", request, signal), signal);
  found.sorted = ordered(found);
  return found;
}

// A whole video: a plan per moment.
export async function clipped(request, signal) {
  const found = await drawn(await postJson("/api/clip", request, signal), signal);
  return { ...found, plans: plansOf(found) };
}

export const percent = (value) => `${(100 * value).toFixed(value < 0.0995 ? 1 : 0)} %`;

export function describe(plan) {
  if (!plan) return "";
  if (plan.whole !== undefined) return `${plan.scorer} · ${plan.used} of ${plan.whole} tokens`;
  const by = plan.allocator === "foveate" ? "gaze" : plan.scorer; // where the eye is, whatever is asked
  return `${by} · ${plan.used} tokens · ${percent(plan.value)} legible`;
}

// One colour means one level in all pictures. Returns the finest and the coarsest.
export function shareLevels(plans) {
  const ranges = plans.map((one) => one.range ?? levelRange(one.sorted));
  const levels = [Math.min(...ranges.map(([low]) => low)), Math.max(...ranges.map(([, high]) => high))];
  for (const one of plans) one.levels = levels;
  return levels;
}

// What the sidebar says of a plan: the ends of the colours, and its share of full resolution.
export function wordsOf(plan, [low, high]) {
  const full = plan.full.toLocaleString("en"), used = plan.whole ?? plan.used;
  return {
    finest: `${(2 ** low).toFixed(1)} px per sample`,
    coarsest: high - low > 0.01 ? `${(2 ** high).toFixed(1)} px` : "",
    "budget-hint": used < plan.full ? `${percent(used / plan.full)} of the ${full} tokens at full resolution` : `${full} tokens show it at full resolution`,
  };
}
