// Below the pictures: the pages of a document or the moments of a video, and the channels.
import { objectUrl } from "./api.js";

function picture(path) {
  const image = document.createElement("img");
  image.alt = "";
  // Loaded when it comes near: a document may have hundreds of pages.
  new IntersectionObserver((entries, observer) => {
    if (!entries.some((one) => one.isIntersecting)) return;
    observer.disconnect();
    objectUrl(path).then((url) => {
      image.onload = () => URL.revokeObjectURL(url);
      image.src = url;
    }).catch(() => {});
  }).observe(image);
  return image;
}

export function fillStrip(strip, image, choose) {
  strip.hidden = image.pages < 2;
  strip.setAttribute("aria-label", image.kind === "video" ? "Moments" : "Pages");
  const buttons = Array.from({ length: image.pages > 1 ? image.pages : 0 }, (_, page) => {
    const button = document.createElement("button"), name = document.createElement("span");
    button.type = "button";
    name.textContent = image.times ? `${image.times[page].toFixed(1)} s` : `${page + 1}`;
    button.setAttribute("aria-label", image.times ? `Moment at ${name.textContent}` : `Page ${name.textContent}`);
    button.append(picture(`/api/thumbnails/${image.id}.jpg?page=${page}`), name);
    button.addEventListener("click", () => choose(page));
    return button;
  });
  strip.replaceChildren(...buttons);
}

export function markPage(strip, page) {
  [...strip.children].forEach((button, index) => {
    if (index === page) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  });
  strip.children[page]?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

// channels: as /api/about lists them; those that an image alone gives
export function fillChannels(shelf, channels, image, chosen, choose) {
  const page = image.page ? `&page=${image.page}` : "";
  const buttons = channels.filter((one) => one.drawn).map(({ name, holds }) => {
    const button = document.createElement("button"), label = document.createElement("span");
    button.type = "button";
    button.title = holds;
    button.dataset.channel = name;
    label.textContent = name.replaceAll("_", " ");
    button.append(picture(`/api/channels/${image.id}/${name}.jpg?small=true${page}`), label);
    button.addEventListener("click", () => choose(name));
    return button;
  });
  shelf.replaceChildren(...buttons);
  markChannel(shelf, chosen);
}

export function markChannel(shelf, chosen) {
  for (const button of shelf.children) button.setAttribute("aria-pressed", String(button.dataset.channel === chosen));
}
