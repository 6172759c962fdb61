"""Needles found, as heat maps of length x depth."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def write_needle_plot(found: Sequence[dict[str, Any]], target: Path) -> None:
    """A map per kind, every cell with its percentage; a PNG, SVG or PDF, by the name."""
    kinds = list(dict.fromkeys(cell["kind"] for cell in found))
    lengths = sorted({cell["length"] for cell in found})
    depths = sorted({cell["depth"] for cell in found})
    size = (1.2 + len(kinds) * (1.2 + 0.7 * len(lengths)), 1.6 + 0.5 * len(depths))
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, kind in zip(figure.subplots(1, len(kinds), squeeze=False, sharey=True)[0], kinds, strict=True):
        scores = {(cell["depth"], cell["length"]): 100 * cell["score"] for cell in found if cell["kind"] == kind}
        image = axes.imshow(
            [[scores[depth, length] for length in lengths] for depth in depths], vmin=0, vmax=100, cmap="viridis"
        )
        for (depth, length), percent in scores.items():
            place = (lengths.index(length), depths.index(depth))
            color = "black" if percent > 60 else "white"
            axes.annotate(f"{percent:.0f}", place, ha="center", va="center", color=color, fontsize=8)
        axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths], rotation=45)
        axes.set_yticks(range(len(depths)), [f"{depth:g}%" for depth in depths])
        axes.set(title=kind, xlabel="tokens")
    figure.axes[0].set_ylabel("depth of the needle")
    figure.colorbar(image, ax=figure.axes, label="found [%]", shrink=0.8)
    figure.savefig(target)
