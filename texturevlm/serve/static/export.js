// What leaves the page: a picture, the tokens, the Python that does the same.
import { postJson } from "./api.js";
import { paintFootprints, paintSeen } from "./paint.js";

const LARGEST = 4096; // pixels along the longer side of an exported picture

// clip: of a whole video, as /api/clip answered
export async function save(kind, { plan, clip, image, request, footprints }) {
  const stem = image.name.replace(/\.[^.]*$/, "").replace(/[^\w-]+/g, "_").slice(0, 60) || "texturevlm";
  if (kind === "png") download(await picture(plan, footprints), `${stem}-${plan.used}-tokens.png`);
  else if (kind === "json") {
    const tokens = clip ? clip.moments : await postJson("/api/allocation", request);
    download(new Blob([JSON.stringify(tokens, null, 1)], { type: "application/json" }), `${stem}-tokens.json`);
  } else download(new Blob([python(image, request, clip)], { type: "text/x-python" }), `${stem}.py`);
}

function picture(plan, footprints) {
  const scale = Math.min(1, LARGEST / Math.max(...plan.size));
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(plan.size[1] * scale);
  canvas.height = Math.round(plan.size[0] * scale);
  const context = canvas.getContext("2d"), where = { x: 0, y: 0, scale };
  paintSeen(context, where, plan);
  if (footprints) paintFootprints(context, where, plan, { wash: 0.06 });
  return new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
}

export function python(image, request, clip) {
  const text = JSON.stringify; // of texts and numbers: Python reads it alike
  const page = request.page ?? 0;
  const opening = {
    image: `texture = tv.Texture.open(${text(image.name)}).mipmapped()`,
    document: `import torch\nfrom texturevlm.pages import open_pages\n\npages = open_pages(${text(image.name)})\ntexture = pages.texture(${page}, 1 << 22, torch.device("cpu")).mipmapped()`,
    video: `from texturevlm.video import keep_moments, open_video\n\nmoments = keep_moments(open_video(${text(image.name)}, fps=2.0), together=1).moments()\ntexture = tv.Texture((moments[${page}].frames[:1].float() / 255,)).mipmapped()`,
  }[image.kind];
  if (clip) return wholeVideo(image, request);
  return `import texturevlm as tv\n${opening}\n${choosing(request)}\npatches = tv.sample(texture, allocation)\nprint(patches.pixels.shape)\n`;
}

function choosing({ question, budget, patch, allocator, scorer, gaze, trail }) {
  const text = JSON.stringify, options = `budget=${budget}, patch=${patch}`;
  if (gaze) return `allocation = tv.foveate(texture.size, fixation=(${gaze.join(", ")}), e0=0.1, ${options})`;
  if (!trail?.length) return `allocation = tv.choose_tokens(\n    texture, ${text(question)}, ${options}, allocator=${text(allocator)}, relevance=${text(scorer)}\n)`;
  return `from texturevlm.serve.gaze import gaze_map, looked_at

trail = ${text(trail)}  # x, y and seconds
relevance = tv.find_relevance(texture, ${text(question)}, patch=${patch}, relevance=${text(scorer)})
relevance = looked_at(relevance, gaze_map(trail, texture.size))
allocation = tv.ALLOCATORS[${text(allocator)}](texture, relevance, ${options})`;
}

function wholeVideo(image, { question, budget, patch, allocator, scorer }) {
  const text = JSON.stringify;
  return `from texturevlm.video import choose_clip, keep_moments, open_video

moments = keep_moments(open_video(${text(image.name)}, fps=2.0), together=1).moments()
shown = choose_clip(
    moments, ${text(question)}, budget=${budget}, patch=${patch}, allocator=${text(allocator)}, relevance=${text(scorer)}
)
for one in shown:
    print(f"{one.time:.1f} s: {int(one.allocation.valid.sum())} tokens")
`;
}

function download(blob, name) {
  const anchor = document.createElement("a");
  anchor.href = URL.createObjectURL(blob);
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(anchor.href), 10000);
}
