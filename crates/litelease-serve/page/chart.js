// A strip chart of what is in use and who waits, since the page was opened.

const MOST = 1200;

export class Chart {
  constructor(canvas) {
    this.canvas = canvas;
    this.points = [];
  }

  add(point) {
    this.points.push(point);
    // Rather coarse than endless: every other point of a long time goes.
    if (this.points.length > MOST) this.points = this.points.filter((_, at) => at % 2 === 0);
    this.draw();
  }

  clear() {
    this.points = [];
  }

  draw() {
    const { canvas, points } = this;
    const scale = window.devicePixelRatio || 1;
    const width = canvas.clientWidth;
    const height = canvas.clientHeight;
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.dataset.points = points.length;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    if (points.length === 0) return;
    const color = (name) => getComputedStyle(canvas).getPropertyValue(name);
    const start = points[0].time;
    const span = Math.max(points[points.length - 1].time - start, 10_000);
    const top = Math.max(1, ...points.map((p) => Math.max(p.count, p.inUse, p.waiters)));
    const x = (p) => 8 + ((p.time - start) / span) * (width - 16);
    const y = (value) => height - 18 - (value / top) * (height - 30);
    const line = (of, stroke, fill) => {
      pen.beginPath();
      points.forEach((p, at) => {
        if (at > 0) pen.lineTo(x(p), y(of(points[at - 1])));
        pen.lineTo(x(p), y(of(p)));
      });
      pen.strokeStyle = stroke;
      pen.lineWidth = 1.8;
      pen.stroke();
      if (!fill) return;
      pen.lineTo(x(points[points.length - 1]), y(0));
      pen.lineTo(x(points[0]), y(0));
      pen.globalAlpha = 0.16;
      pen.fillStyle = stroke;
      pen.fill();
      pen.globalAlpha = 1;
    };
    pen.setLineDash([3, 4]);
    line((p) => p.count, color("--line"), false);
    pen.setLineDash([]);
    line((p) => p.inUse, color("--use"), true);
    line((p) => p.waiters, color("--wait"), false);
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = color("--soft");
    pen.fillText(`${Math.round(span / 1000)} s`, 8, height - 4);
    pen.textAlign = "right";
    pen.fillText(`${top}`, width - 8, 12);
  }
}
