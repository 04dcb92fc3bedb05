// The map of the fleet on a canvas: only what is in sight is drawn, so that 80,000 devices stay fluid. Owns view and selection;
// what it knows comes in parts from the server, and again for the nodes that a change names.

import { Layout } from "./layout.js";
import { Painter } from "./painter.js";

const ZOOM = 1.35;
const MOST = 60;
const FAIR = "in_service";

class FleetMap {
  constructor(canvas, address) {
    this.canvas = canvas;
    this.address = address;
    this.said = document.getElementById("map-at");
    this.layout = new Layout();
    this.painter = new Painter(canvas);
    this.view = { x: 0, y: 0, scale: 1 };
    this.at = null;
    this.by = "state";
    this.due = false;
    this.moved = false;
    this.asking = false;
    this.wanted = null;
    this.frames = [];
    this.bind();
  }

  // Asks again for what changed, or for all of it where no subject says what. One answer at a time, and what changes meanwhile
  // behind it: an answer that was overtaken by a newer one would put back what was.
  async follow(subjects) {
    const all = !subjects.length || this.wanted?.length === 0;
    this.wanted = all ? [] : [...(this.wanted ?? []), ...subjects];
    if (this.asking) return;
    this.asking = true;
    try {
      while (this.wanted) {
        const now = this.wanted;
        this.wanted = null;
        await this.update(now);
      }
    } catch (error) {
      this.wanted = []; // what this answer would have said is in the next one
      throw error;
    } finally {
      this.asking = false;
    }
  }

  async load() {
    let after = 0;
    const layout = new Layout();
    do {
      const part = await this.ask(`?after=${after}`);
      layout.add(part);
      after = part.next;
    } while (after);
    this.layout = layout;
    this.resize();
    if (!this.moved) this.fit();
    this.tell();
  }

  async ask(query) {
    const response = await fetch(this.address + query, { headers: { "X-Keepstep-Request": "1" }, cache: "no-store" });
    if (!response.ok) throw new Error(`status ${response.status}`);
    return response.json();
  }

  // Only what changed is asked for again; where too much did, all of it.
  async update(subjects) {
    const nodes = new Set();
    for (const subject of subjects) {
      const [kind, name] = subject.split("/");
      if (kind === "node" || kind === "device") nodes.add(name);
    }
    if (subjects.length && !nodes.size) return;
    const known = [...nodes].filter((name) => this.layout.byName.has(name));
    if (!subjects.length || known.length !== nodes.size || nodes.size > 200) return this.load();
    const changed = this.layout.replace(await this.ask(`?nodes=${encodeURIComponent(known.join(","))}`));
    this.painter.patch(this.layout, changed, this.by);
    this.draw();
    this.tell();
  }

  resize() {
    const box = this.canvas.getBoundingClientRect();
    const same = this.layout.version && box.width === this.painter.width && box.height === this.painter.height;
    if (same) return;
    this.painter.resize(box.width, box.height, devicePixelRatio);
    this.layout.flow(box.width / Math.max(1, box.height));
    this.draw();
  }

  fit() {
    const { width, height } = this.painter;
    const scale = Math.min(width / this.layout.width, height / this.layout.height);
    this.view = { x: 0, y: 0, scale: Math.min(MOST / 3, scale) };
    this.view.x = (this.layout.width - width / this.view.scale) / 2;
    this.view.y = Math.min(0, (this.layout.height - height / this.view.scale) / 2);
    this.draw();
  }

  zoom(factor, atX = this.painter.width / 2, atY = this.painter.height / 2) {
    this.moved = true;
    const least = Math.min(this.painter.width / this.layout.width, this.painter.height / this.layout.height) / 2;
    const scale = Math.max(least, Math.min(MOST, this.view.scale * factor));
    this.view.x += atX / this.view.scale - atX / scale;
    this.view.y += atY / this.view.scale - atY / scale;
    this.view.scale = scale;
    this.draw();
  }

  pan(dx, dy) {
    this.moved = true;
    this.view.x -= dx / this.view.scale;
    this.view.y -= dy / this.view.scale;
    this.draw();
  }

  draw() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => {
      this.due = false;
      const began = performance.now();
      this.painter.paint(this.layout, this.view, this.by, this.at);
      this.frames.push(performance.now() - began);
      if (this.frames.length > 120) this.frames.shift();
    });
  }

  // ---- selection: a node, and one of its devices; slot -1 is the node itself

  select(at) {
    this.at = at;
    const box = this.layout.boxOf(at);
    const { width, height } = this.painter;
    const left = (box.x - this.view.x) * this.view.scale;
    const top = (box.y - this.view.y) * this.view.scale;
    const size = this.view.scale;
    if (left < 0 || top < 0 || left + size > width || top + size > height) {
      this.view.x = box.x - width / this.view.scale / 2;
      this.view.y = box.y - height / this.view.scale / 2;
    }
    this.draw();
    this.tell();
  }

  tell() {
    const text = this.at ? this.layout.describe(this.at) : this.layout.summary();
    if (this.said.textContent !== text) this.said.textContent = text;
  }

  open() {
    if (!this.at) return;
    const name = encodeURIComponent(this.layout.nodes[this.at.node].name);
    location.assign(this.at.slot < 0 ? `/fleet/nodes/${name}` : `/fleet/devices/${name}/${this.at.slot}`);
  }

  problem() {
    const found = this.layout.next(this.at, (state, held) => state !== FAIR || held);
    if (found) this.select(found);
    else this.said.textContent = "Everything is in service, and nobody holds anything.";
  }

  // ---- what the viewer does

  bind() {
    const { canvas } = this;
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? ZOOM : 1 / ZOOM, event.offsetX, event.offsetY);
    }, { passive: false });
    this.bindPointers();
    document.getElementById("map-in").addEventListener("click", () => this.zoom(ZOOM));
    document.getElementById("map-out").addEventListener("click", () => this.zoom(1 / ZOOM));
    document.getElementById("map-fit").addEventListener("click", () => this.fit());
    document.getElementById("map-next").addEventListener("click", () => this.problem());
    document.getElementById("map-by").addEventListener("change", (event) => { this.by = event.target.value; this.draw(); });
    document.addEventListener("keepstep:theme", () => { this.painter.readColours(); this.draw(); });
    document.addEventListener("keepstep:change", (event) => this.follow(event.detail).catch(() => {}));
    new ResizeObserver(() => this.layout.nodes.length && this.resize()).observe(canvas);
  }

  bindPointers() {
    const { canvas } = this;
    const down = new Map();
    let travelled = 0;
    let spread = 0;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      down.set(event.pointerId, event);
      travelled = 0;
      spread = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const before = down.get(event.pointerId);
      if (!before) return;
      down.set(event.pointerId, event);
      if (down.size === 1) {
        const [dx, dy] = [event.clientX - before.clientX, event.clientY - before.clientY];
        travelled += Math.abs(dx) + Math.abs(dy);
        this.pan(dx, dy);
        return;
      }
      const [one, other] = [...down.values()];
      const now = Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
      if (spread) this.zoom(now / spread);
      spread = now;
      travelled = 100;
    });
    const up = (event) => {
      if (!down.delete(event.pointerId) || travelled > 5 || event.type === "pointercancel") return;
      const found = this.layout.hit(this.view.x + event.offsetX / this.view.scale, this.view.y + event.offsetY / this.view.scale);
      if (!found) return;
      const same = this.at && this.at.node === found.node && this.at.slot === found.slot;
      this.select(found);
      if (same) this.open();
    };
    canvas.addEventListener("pointerup", up);
    canvas.addEventListener("pointercancel", up);
  }

  key(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const does = {
      Enter: () => this.open(), "+": () => this.zoom(ZOOM), "=": () => this.zoom(ZOOM), "-": () => this.zoom(1 / ZOOM),
      "0": () => this.fit(), n: () => this.problem(), N: () => this.problem(),
      Home: () => this.select({ node: 0, slot: -1 }), End: () => this.select({ node: this.layout.nodes.length - 1, slot: -1 }),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !this.layout.nodes.length) return;
    if (moves[event.key]) this.select(this.at ? this.layout.step(this.at, ...moves[event.key]) : { node: 0, slot: -1 });
    else if (does[event.key]) does[event.key]();
    else return;
    event.preventDefault();
  }
}

export function startMap() {
  const canvas = document.getElementById("map");
  if (!canvas) return;
  const map = new FleetMap(canvas, canvas.parentElement.dataset.map);
  canvas.map = map;
  map.follow([]).catch((error) => {
    map.said.textContent = `The map could not be loaded (${error.message}); the list has the same. It is tried again in 5 s.`;
    setTimeout(() => map.follow([]).catch(() => {}), 5000);
  });
}
