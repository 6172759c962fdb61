"""Layer-wise novelty as a picture."""

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def write_novelty_plot(found: dict[str, Any], target: Path) -> None:
    """rho_block and rho_mlp over the layers; a PNG, SVG or PDF, by the name."""
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, color, marker in (("block", "tab:blue", "o"), ("mlp", "tab:orange", "s")):
        r = found[f"pearson_{name}"]
        label = f"rho_{name}" + ("" if r is None else f", r = {r:.2f}")
        axes.plot(found[f"rho_{name}"], color=color, marker=marker, markersize=4, label=label)
    axes.axhline(0, color="gray", linewidth=0.8)
    axes.set(xlabel="layer", ylabel="cosine with the residual stream")
    axes.set_title(f"{found['model']}, {found['num_tokens']:,} tokens", fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(target)
