// The pictures side by side: as many as are wanted, all zoomed in step.
import { Pane } from "./pane.js";

const LETTERS = "abcd";

export class Panes {
  // tell: { moved(), pointed(pane, point or null) }
  constructor(place, template, tell) {
    this.place = place;
    this.template = template;
    this.tell = tell;
    this.all = [...LETTERS].map((letter) => this.made(letter));
    this.opening = false; // until all stand: one must not follow the picture before
    this.count = 0;
  }

  get shown() {
    return this.all.slice(0, this.count);
  }

  // Show so many; one that was hidden opens the picture that the others show.
  show(count) {
    this.count = count;
    this.place.dataset.count = String(count);
    this.all.forEach((pane, index) => { pane.element.hidden = index >= count; });
    if (this.image) this.complete();
  }

  made(letter) {
    const element = this.template.content.firstElementChild.cloneNode(true);
    element.id = `pane-${letter}`;
    this.place.append(element);
    return new Pane(element, { moved: (pane) => this.inStep(pane), pointed: this.tell.pointed });
  }

  async complete() {
    const late = this.shown.filter((pane) => pane.image !== this.image);
    if (this.opening || !late.length) return;
    await Promise.all(late.map((pane) => pane.open(this.image, this.tile)));
    for (const pane of late) pane.follow(this.all[0]);
  }

  async open(image, tile, view) {
    this.image = image;
    this.tile = tile;
    this.place.dataset.shape = image.size[0] > image.size[1] ? "tall" : "wide";
    this.opening = true;
    await Promise.all(this.shown.map((pane) => pane.open(image, tile)));
    this.opening = false;
    const [first] = this.all;
    first.home(true);
    if (view.length === 4 && view.every(Number.isFinite)) {
      first.viewer.viewport.fitBounds(new OpenSeadragon.Rect(...view), true);
      first.atHome = false;
    }
    first.told = ""; // whatever put the last picture there
    this.inStep(first);
    this.complete();
  }

  inStep(pane) {
    // A picture that stands where the other one put it is no news: to follow it would end the other's movement.
    if (this.opening || !pane.viewer.world.getItemCount() || pane.stand() === pane.told) return;
    for (const one of this.shown) if (one !== pane && one.viewer.world.getItemCount()) one.follow(pane);
    const { x, y, width, height } = pane.viewer.viewport.getBounds(true);
    this.tell.moved([x, y, width, height].map((value) => value.toFixed(4)).join(","));
  }

  zoom(factor) {
    const [first] = this.all;
    first.atHome = false;
    if (factor) first.viewer.viewport.zoomBy(factor);
    else first.home();
  }

  each(change) {
    for (const pane of this.all) change(pane);
  }

  draw() {
    for (const pane of this.shown) pane.draw();
  }
}
