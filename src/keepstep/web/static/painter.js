// Draws the part of the map that is in sight. Owns colours and detail: names and marks come with size.

const HEAD = 1.6;
const NAMES_FROM = 7;
const MARKS_FROM = 9;
const GAPS_FROM = 4;
const DETAIL_FROM = 6;
const PICTURE_SCALE = 5;
const PICTURE_MOST = 4096;

function gapOf(scale) {
  return scale >= GAPS_FROM ? Math.max(0.5, scale * 0.1) : 0;
}

// Gathers squares by colour, so that the pen changes its colour a few times and not ninety thousand times.
class Brush {
  constructor(pen, size) {
    this.pen = pen;
    this.size = size;
    this.boxes = new Map();
    this.marks = [];
  }

  add(colour, x, y) {
    const known = this.boxes.get(colour);
    if (known) known.push(x, y);
    else this.boxes.set(colour, [x, y]);
  }

  fill() {
    for (const [colour, places] of this.boxes) {
      this.pen.fillStyle = colour;
      for (let i = 0; i < places.length; i += 2) this.pen.fillRect(places[i], places[i + 1], this.size, this.size);
    }
  }
}

export class Painter {
  constructor(canvas) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
    this.width = 1;
    this.height = 1;
    this.ratio = 1;
    this.probe = document.createElement("span");
    this.probe.hidden = true;
    document.body.append(this.probe);
    this.readColours();
  }

  // Setting a size empties the canvas, also where it is the same: then what is drawn stays until it is drawn anew.
  resize(width, height, ratio) {
    [this.width, this.height, this.ratio] = [Math.max(1, width), Math.max(1, height), ratio];
    const [across, down] = [Math.round(this.width * ratio), Math.round(this.height * ratio)];
    if (this.canvas.width !== across) this.canvas.width = across;
    if (this.canvas.height !== down) this.canvas.height = down;
  }

  // The stylesheet's colours as they are in the present theme, each asked for once.
  readColours() {
    this.colours = new Map();
    this.picture = null;
  }

  colour(name) {
    let known = this.colours.get(name);
    if (!known) {
      this.probe.style.color = `var(--${name})`;
      known = getComputedStyle(this.probe).color;
      this.colours.set(name, known);
    }
    return known;
  }

  // From afar one picture of the whole is scaled; from near the cells in sight are drawn one by one.
  paint(layout, view, by, at) {
    const { pen } = this;
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    if (view.scale < DETAIL_FROM) {
      const { scale } = view;
      const picture = this.whole(layout, by);
      pen.drawImage(picture, -view.x * scale, -view.y * scale, layout.width * scale, layout.height * scale);
    } else {
      this.near(layout, view, by);
    }
    if (at) this.chosen(layout.boxOf(at), view);
  }

  near(layout, view, by) {
    const { scale } = view;
    const brush = new Brush(this.pen, Math.max(0.6, scale - gapOf(scale)));
    const bottom = view.y + this.height / scale;
    const right = view.x + this.width / scale;
    for (const line of layout.lines) {
      if (line.y + line.height < view.y || line.y > bottom) continue;
      for (const rack of line.racks) {
        if (rack.x + rack.width < view.x || rack.x > right) continue;
        const left = (rack.x - view.x) * scale;
        const top = (rack.y - view.y + HEAD) * scale;
        rack.nodes.forEach((index, row) => {
          const y = top + row * scale;
          if (y + scale >= 0 && y <= this.height) this.row(layout, layout.nodes[index], left, y, scale, by, brush);
        });
        if (scale >= NAMES_FROM) this.name(rack, left, (rack.y - view.y + HEAD - 0.4) * scale, scale);
      }
    }
    brush.fill();
    this.marks(brush.marks, scale);
  }

  // The picture of everything, drawn once for each theme and way of colouring.
  whole(layout, by) {
    if (this.picture && this.pictured === `${by} ${layout.version}`) return this.picture;
    const scale = Math.min(PICTURE_SCALE, PICTURE_MOST / layout.width, PICTURE_MOST / layout.height);
    this.picture = document.createElement("canvas");
    this.picture.width = Math.ceil(layout.width * scale);
    this.picture.height = Math.ceil(layout.height * scale);
    this.pictured = `${by} ${layout.version}`;
    this.pictureScale = scale;
    this.patch(layout, layout.nodes.keys(), by);
    return this.picture;
  }

  // Nodes that changed, into the picture that there is.
  patch(layout, indices, by) {
    if (!this.picture) return;
    const scale = this.pictureScale;
    const brush = new Brush(this.picture.getContext("2d"), scale);
    for (const index of indices) {
      const box = layout.boxOf({ node: index, slot: -1 });
      this.row(layout, layout.nodes[index], box.x * scale, box.y * scale, scale, by, brush);
    }
    brush.fill();
  }

  row(layout, node, left, top, scale, by, brush) {
    this.cell(layout, node.own, by, node.score, left, top, brush);
    for (let slot = 0; slot < node.devices.length; slot += 1) {
      this.cell(layout, node.devices[slot], by, node.score, left + (slot + 1.3) * scale, top, brush);
    }
  }

  name(rack, left, base, scale) {
    const { pen } = this;
    pen.fillStyle = this.colour("muted");
    pen.font = `${Math.min(14, Math.max(9, scale * 0.9))}px system-ui, sans-serif`;
    pen.fillText(rack.name || "no rack", left, base, rack.width * scale);
  }

  cell(layout, letter, by, score, x, y, brush) {
    const { state, held } = layout.read(letter);
    brush.add(by === "score" ? this.score(score) : this.colour(`s-${state.replace("_", "-")}`), x, y);
    if (brush.size >= MARKS_FROM && (held || state !== "in_service")) brush.marks.push({ x, y, size: brush.size, held, state });
  }

  score(score) {
    return score < 0 ? this.colour("s-retired") : this.colour(`heat-${Math.min(5, Math.floor(score / 16.7))}`);
  }

  // Not by colour alone: the first letter of the state, and a line through what somebody holds.
  marks(marks, scale) {
    const { pen } = this;
    pen.fillStyle = this.colour("page");
    pen.strokeStyle = this.colour("page");
    pen.lineWidth = Math.max(1, scale * 0.1);
    pen.font = `600 ${Math.round(scale * 0.62)}px system-ui, sans-serif`;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.beginPath();
    for (const { x, y, size, held, state } of marks) {
      if (state !== "in_service") pen.fillText(state[0].toUpperCase(), x + size / 2, y + size / 2 + 0.5);
      if (held) {
        pen.moveTo(x, y + size);
        pen.lineTo(x + size * 0.35, y + size * 0.65);
      }
    }
    pen.stroke();
    pen.textAlign = "start";
    pen.textBaseline = "alphabetic";
  }

  chosen(box, view) {
    const { pen } = this;
    const size = Math.max(6, view.scale);
    const [x, y] = [(box.x - view.x) * view.scale, (box.y - view.y) * view.scale];
    pen.lineWidth = 4;
    pen.strokeStyle = this.colour("card");
    pen.strokeRect(x - 2, y - 2, size + 3, size + 3);
    pen.lineWidth = 2;
    pen.strokeStyle = this.colour("text");
    pen.strokeRect(x - 2, y - 2, size + 3, size + 3);
  }
}
