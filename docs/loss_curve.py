"""Draws a training curve as SVG: `python docs/loss_curve.py METRICS.jsonl docs/images/tiny-loss`.

Reads the lines that train.metrics_path leaves, writes NAME.json (the points) and NAME.svg (the picture). Nothing but
the standard library.
"""

import json
import math
import sys
from pathlib import Path

WIDTH, HEIGHT = 720, 320
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 16, 44
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #57606a }
  line { stroke: #d0d7de }
  polyline { fill: none; stroke: #0969da; stroke-width: 1.5 }
  @media (prefers-color-scheme: dark) { text { fill: #8b949e } line { stroke: #30363d } polyline { stroke: #58a6ff } }
"""


def points(metrics: Path) -> list[tuple[int, float]]:
    """Step and loss; a step that was done again after a restart counts once."""
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return sorted({line["step"]: line["loss"] for line in lines if line["loss"] is not None}.items())


def svg(curve: list[tuple[int, float]]) -> str:
    last, top = curve[-1][0] + 1, math.ceil(max(loss for _, loss in curve))

    def at(step: float, loss: float) -> tuple[float, float]:
        x = LEFT + step / last * (WIDTH - LEFT - RIGHT)
        return round(x, 1), round(HEIGHT - BOTTOM - loss / top * (HEIGHT - TOP - BOTTOM), 1)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    parts += [f"<title>Loss over {last} steps</title>", f"<style>{STYLE}</style>"]
    for loss in range(top + 1):
        x, y = at(0, loss)
        parts.append(f'<line x1="{x}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}"/>')
        parts.append(f'<text x="{x - 8}" y="{y + 4}" text-anchor="end">{loss}</text>')
    for step in range(0, last + 1, max(1, last // 6)):
        x, y = at(step, 0)
        parts.append(f'<text x="{x}" y="{y + 18}" text-anchor="middle">{step}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">step (loss in nats a byte)</text>')
    parts.append('<polyline points="' + " ".join("{},{}".format(*at(*point)) for point in curve) + '"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main(metrics: str, name: str) -> None:
    curve = points(Path(metrics))
    steps, losses = [step for step, _ in curve], [round(loss, 4) for _, loss in curve]
    Path(f"{name}.json").write_text(json.dumps({"step": steps, "loss": losses}) + "\n")
    Path(f"{name}.svg").write_text(svg(curve))


if __name__ == "__main__":
    main(*sys.argv[1:])
