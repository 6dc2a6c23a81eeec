// One picture that zooms: OpenSeadragon draws the original, a canvas above it everything else.
import { headers } from "./api.js";
import { paintAttention, paintBox, paintFootprints, paintHighlight, paintOver, paintSeen, paintTrail } from "./paint.js";

export class Pane {
  // tell: { moved(pane), pointed(pane, point or null) }
  constructor(element, tell) {
    this.element = element;
    this.view = element.querySelector(".view");
    this.title = element.querySelector("h2");
    this.note = element.querySelector("p");
    // frame: a picture that plays above the tiles; look: tokens of an earlier look
    this.plan = this.relevance = this.channel = this.highlight = this.box = this.frame = this.gaze = this.look = null;
    this.kind = "original";
    this.footprints = false;
    this.viewer = OpenSeadragon({
      element: this.view, showNavigationControl: false, drawer: "canvas", animationTime: 0.3, springStiffness: 9,
      loadTilesWithAjax: true, ajaxHeaders: headers(), maxZoomPixelRatio: 16, minZoomImageRatio: 0.7, visibilityRatio: 0.4,
      gestureSettingsMouse: { clickToZoom: false, dblClickToZoom: true }, zoomPerScroll: 1.25, keyboardNavEnabled: false,
    });
    this.canvas = document.createElement("canvas");
    this.canvas.className = "over";
    this.view.append(this.canvas);
    this.context = this.canvas.getContext("2d");
    new ResizeObserver(() => this.draw()).observe(this.view);
    this.viewer.addHandler("viewport-change", () => { this.draw(); tell.moved(this); });
    this.viewer.addHandler("open", () => { this.applyKind(); this.home(true); this.draw(); });
    // A picture that was shown as a whole stays so when its place changes.
    this.viewer.addHandler("resize", () => requestAnimationFrame(() => { if (this.atHome) this.home(true); }));
    for (const moving of ["canvas-scroll", "canvas-drag", "canvas-pinch", "canvas-double-click"]) {
      this.viewer.addHandler(moving, () => { this.atHome = false; });
    }
    this.view.addEventListener("pointermove", (event) => tell.pointed(this, this.pointOf(event)));
    this.view.addEventListener("pointerleave", () => tell.pointed(this, null));
  }

  open(image, tile) {
    this.image = image;
    this.size = image.size;
    const [height, width] = image.size;
    const extent = (level) => [width, height].map((side) => Math.max(1, Math.floor(side / 2 ** (image.levels - 1 - level))));
    const query = image.page ? `?page=${image.page}` : "";
    return new Promise((resolve) => {
      this.viewer.addOnceHandler("open", resolve);
      this.viewer.open({
        width, height, tileSize: tile, tileOverlap: 0, minLevel: Math.max(0, image.levels - 6), maxLevel: image.levels - 1,
        // OpenSeadragon's level 0 is the smallest, ours the largest; our levels are rounded down.
        getTileUrl: (level, x, y) => `/api/tiles/${image.id}/${image.levels - 1 - level}/${x}_${y}.jpg${query}`,
        getNumTiles: (level) => new OpenSeadragon.Point(...extent(level).map((side) => Math.ceil(side / tile))),
      });
    });
  }

  // The whole picture with a margin.
  home(immediately = false) {
    const item = this.viewer.world.getItemAt(0), { clientWidth, clientHeight } = this.view;
    if (!item) return;
    // OpenSeadragon looks at its size now and then only. A resize comes back here.
    const size = new OpenSeadragon.Point(clientWidth, clientHeight);
    if (!this.viewer.viewport.getContainerSize().equals(size)) this.viewer.viewport.resize(size);
    const box = item.getBounds(), margin = 0.025 * Math.max(box.width, box.height);
    const wide = new OpenSeadragon.Rect(box.x - margin, box.y - margin, box.width + 2 * margin, box.height + 2 * margin);
    this.viewer.viewport.fitBounds(wide, immediately);
    this.atHome = true;
  }

  // original, seen or difference
  show(kind, title, note = "") {
    this.kind = kind;
    this.title.textContent = title;
    this.note.textContent = note;
    this.view.setAttribute("aria-label", `${title}. ${note}`);
    this.view.classList.toggle("difference", kind === "difference");
    this.applyKind();
    this.draw();
  }

  applyKind() {
    this.viewer.world.getItemAt(0)?.setOpacity(this.kind === "seen" && this.plan ? 0 : 1);
  }

  follow(other) {
    const from = other.viewer.viewport, to = this.viewer.viewport;
    to.zoomTo(from.getZoom(true), null, true);
    to.panTo(from.getCenter(true), true);
    this.atHome = other.atHome;
    this.told = this.stand();
    this.draw();
  }

  // Where the picture stands now, as a text that two pictures in step have in common.
  stand() {
    const { viewport } = this.viewer, { x, y } = viewport.getCenter(true);
    return [viewport.getZoom(true), x, y].map((value) => value.toFixed(5)).join(" ");
  }

  pointOf(event) {
    const item = this.viewer.world.getItemAt(0);
    if (!item) return null;
    const box = this.view.getBoundingClientRect();
    const at = new OpenSeadragon.Point(event.clientX - box.left, event.clientY - box.top);
    const { x, y } = item.viewerElementToImageCoordinates(at);
    return x < 0 || y < 0 || x >= this.size[1] || y >= this.size[0] ? null : { x, y };
  }

  where() {
    const item = this.viewer.world.getItemAt(0);
    if (!item) return null;
    const from = item.imageToViewerElementCoordinates(new OpenSeadragon.Point(0, 0));
    const to = item.imageToViewerElementCoordinates(new OpenSeadragon.Point(this.size[1], 0));
    const ratio = devicePixelRatio;
    return { x: from.x * ratio, y: from.y * ratio, scale: ((to.x - from.x) / this.size[1]) * ratio };
  }

  draw() {
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => { this.drawing = 0; this.drawNow(); });
  }

  drawNow() {
    const ratio = devicePixelRatio, where = this.where();
    const width = Math.round(this.view.clientWidth * ratio), height = Math.round(this.view.clientHeight * ratio);
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    this.context.setTransform(1, 0, 0, 1, 0, 0);
    this.context.clearRect(0, 0, width, height);
    if (!where) return;
    if (this.frame && this.kind !== "seen") paintOver(this.context, where, this.size, this.frame);
    if (this.plan && this.kind !== "original") paintSeen(this.context, where, this.plan);
    if (this.kind === "difference") return;
    if (this.channel && !this.frame) paintOver(this.context, where, this.size, this.channel, 0.85);
    if (this.relevance && !this.frame) paintOver(this.context, where, this.size, this.relevance, 0.8);
    if (this.plan?.attention) paintAttention(this.context, where, this.plan, this.plan.attention);
    const outlined = this.kind === "original" && this.look ? this.look : this.plan;
    const clear = this.kind === "seen" || this.relevance || this.channel || this.plan?.attention; // their colours are to be seen
    if (outlined && this.footprints) paintFootprints(this.context, where, outlined, { wash: clear ? 0.02 : 0.09 });
    if (this.gaze?.trail.length && this.kind === "original") paintTrail(this.context, where, this.gaze.trail, this.gaze.now);
    if (this.box) paintBox(this.context, where, this.box);
    if (this.plan && this.highlight) paintHighlight(this.context, where, this.plan, this.highlight);
  }
}
