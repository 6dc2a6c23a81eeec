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
  } else download(new Blob([python(image, request, clip ?? plan, clip)], { type: "text/x-python" }), `${stem}.py`);
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

export function python(image, request, plan, clip) {
  const text = JSON.stringify; // of texts and numbers: Python reads it alike
  const beginning = `import texturevlm as tv\nfrom texturevlm.placement import Finer, TokenConfig\n`;
  const how = `\nhow = ${plan.how}\n`;
  const moments = `moments = keep_moments(open_video(${text(image.name)}, fps=2.0), together=1).moments\n`;
  const reading = "from texturevlm.video import choose_clip, keep_moments, open_video, upright_moments\n";
  if (clip) return `${beginning}${reading}${how}${moments}moments, frame = upright_moments(moments, how.turn)
for shown in choose_clip(moments, ${text(request.question)}, how):
    print(f"{shown.time:.1f} s: {int(shown.allocation.valid.sum())} tokens")
`;
  const opened = {
    image: ["", `image = ${text(image.name)}\n`],
    document: ["import torch\nfrom texturevlm.pages import open_pages\n", `image = open_pages(${text(image.name)}).texture(${request.page}, 1 << 22, torch.device("cpu"))\n`],
    video: [reading, `${moments}image = tv.Texture((moments[${request.page}].frames[:1].float() / 255,))\n`],
  }[image.kind];
  const { gaze, trail } = request, looks = gaze || trail?.length;
  const imported = looks ? "from dataclasses import replace\nfrom texturevlm.serve.gaze import around, gaze_evidence\n" : "";
  const looking = looks ? `trail = ${text(trail)}  # x, y and seconds\n` : "";
  const fovea = gaze ? `how = replace(how, allocator=around((${gaze.join(", ")}), picture), options={})\n` : "";
  return `${imported}${opened[0]}${beginning}${how}${opened[1]}picture = tv.prepare(image, how)
${looking}${fovea}placement = tv.place(picture, ${text(request.question)}, how${looks ? ", evidence=gaze_evidence(trail, picture)" : ""})
allocation = placement.given  # in the image as it was given
patches = tv.sample(picture.texture, placement.allocation)  # as a model gets them
print(patches.pixels.shape)
`;
}

function download(blob, name) {
  const anchor = document.createElement("a");
  anchor.href = URL.createObjectURL(blob);
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(anchor.href), 10000);
}
