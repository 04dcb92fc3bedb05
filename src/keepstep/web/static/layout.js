// Where each rack, node and device lies on the map, in cells. A node is a row: itself, then its devices; a rack is a block of
// rows with its name above. Blocks flow into lines so that the whole has about the shape of the window.

const GAP = 1.5;
const HEAD = 1.6;

let versions = 0;

const counted = (number, one) => `${number.toLocaleString()} ${one}${number === 1 ? "" : "s"}`;

export class Layout {
  constructor() {
    this.version = 0;
    this.nodes = [];
    this.byName = new Map();
    this.racks = [];
    this.byRack = new Map();
    this.states = [];
    this.width = 1;
    this.height = 1;
    this.lines = [];
  }

  add(part) {
    this.states = part.states;
    part.names.forEach((name, i) => {
      const rackName = part.rack[i] < 0 ? "" : part.racks[part.rack[i]];
      if (!this.byRack.has(rackName)) {
        this.byRack.set(rackName, this.racks.length);
        this.racks.push({ name: rackName, nodes: [], x: 0, y: 0, width: 0, height: 0 });
      }
      const rack = this.byRack.get(rackName);
      const index = this.nodes.length;
      this.nodes.push({ name, rack, row: this.racks[rack].nodes.length, own: part.node[i], devices: part.devices[i], score: part.score[i] });
      this.racks[rack].nodes.push(index);
      this.byName.set(name, index);
    });
  }

  // Gives which nodes those are.
  replace(part) {
    const indices = part.names.map((name) => this.byName.get(name)).filter((index) => index !== undefined);
    part.names.forEach((name, i) => {
      const node = this.nodes[this.byName.get(name)];
      if (node) [node.own, node.devices, node.score] = [part.node[i], part.devices[i], part.score[i]];
    });
    return indices;
  }

  flow(shape) {
    let area = 0;
    for (const rack of this.racks) {
      rack.width = 1.3 + Math.max(3, ...rack.nodes.map((index) => this.nodes[index].devices.length));
      rack.height = HEAD + rack.nodes.length;
      area += (rack.width + GAP) * (rack.height + GAP);
    }
    const room = Math.max(Math.sqrt(area * shape), ...this.racks.map((rack) => rack.width));
    let [x, y, tall] = [0, 0, 0];
    this.lines = [];
    this.width = 1;
    for (const rack of this.racks) {
      if (x > 0 && x + rack.width > room) [x, y, tall] = [0, y + tall + GAP, 0];
      if (x === 0) this.lines.push({ y, height: 0, racks: [] });
      const line = this.lines.at(-1);
      [rack.x, rack.y] = [x, y];
      line.racks.push(rack);
      tall = Math.max(tall, rack.height);
      line.height = tall;
      x += rack.width + GAP;
      this.width = Math.max(this.width, x - GAP);
    }
    this.height = Math.max(1, y + tall);
    versions += 1;
    this.version = versions;
  }

  // A letter as its state and whether somebody holds it.
  read(letter) {
    const lower = letter.toLowerCase();
    return { state: this.states[lower.charCodeAt(0) - 97], held: lower !== letter };
  }

  letterOf({ node, slot }) {
    const found = this.nodes[node];
    return slot < 0 ? found.own : found.devices[slot];
  }

  boxOf({ node, slot }) {
    const { rack, row } = this.nodes[node];
    const { x, y } = this.racks[rack];
    return { x: x + (slot < 0 ? 0 : slot + 1.3), y: y + HEAD + row };
  }

  hit(x, y) {
    for (const line of this.lines) {
      if (y < line.y || y > line.y + line.height) continue;
      for (const rack of line.racks) {
        const row = Math.floor(y - rack.y - HEAD);
        if (x < rack.x || x > rack.x + rack.width || row < 0 || row >= rack.nodes.length) continue;
        const node = rack.nodes[row];
        const slot = Math.floor(x - rack.x - 1.3);
        return { node, slot: Math.min(slot < 0 ? -1 : slot, this.nodes[node].devices.length - 1) };
      }
    }
    return null;
  }

  // The next cell in a direction; over the edge of a rack comes the next one.
  step({ node, slot }, dx, dy) {
    const { rack, row, devices } = this.nodes[node];
    if (dx) {
      const there = slot + dx;
      if (there >= -1 && there < devices.length) return { node, slot: there };
      const beside = this.racks[rack + dx];
      if (!beside) return { node, slot };
      const next = beside.nodes[Math.min(row, beside.nodes.length - 1)];
      return { node: next, slot: dx > 0 ? -1 : this.nodes[next].devices.length - 1 };
    }
    const near = this.racks[rack].nodes[row + dy];
    const over = near === undefined ? this.under(rack, dy) : near;
    return over === undefined ? { node, slot } : { node: over, slot: Math.min(slot, this.nodes[over].devices.length - 1) };
  }

  // The nearest node of the line of racks above or below.
  under(rack, dy) {
    const from = this.racks[rack];
    const line = this.lines[this.lines.findIndex((candidate) => candidate.racks.includes(from)) + dy];
    if (!line) return undefined;
    const near = line.racks.reduce((best, one) => (Math.abs(one.x - from.x) < Math.abs(best.x - from.x) ? one : best));
    return near.nodes.at(dy > 0 ? 0 : -1);
  }

  // The next cell after one, around the end, of which something is true.
  next(at, wanted) {
    const count = this.nodes.length;
    const start = at ?? { node: 0, slot: -2 };
    for (let i = 0; i <= count; i += 1) {
      const node = (start.node + i) % count;
      for (let slot = i === 0 ? start.slot + 1 : -1; slot < this.nodes[node].devices.length; slot += 1) {
        const { state, held } = this.read(this.letterOf({ node, slot }));
        if (wanted(state, held)) return { node, slot };
      }
    }
    return null;
  }

  describe(at) {
    const node = this.nodes[at.node];
    const { state, held } = this.read(this.letterOf(at));
    const rack = this.racks[node.rack].name;
    const part = at.slot < 0 ? `node ${node.name}` : `node ${node.name}, device ${at.slot}`;
    const score = node.score < 0 ? "" : `, health index of the node ${node.score}`;
    return `${rack ? `rack ${rack}, ` : ""}${part}: ${state.replaceAll("_", " ")}${held ? ", held" : ""}${score}`;
  }

  summary() {
    const devices = this.nodes.reduce((sum, node) => sum + node.devices.length, 0);
    return `${counted(this.nodes.length, "node")}, ${counted(devices, "device")}, ${counted(this.racks.length, "rack")}. Choose one with the arrow keys or by a click.`;
  }
}
