"""The loss of a run as a picture, drawn from its metrics.jsonl."""

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from megatron_tlm.train.logs.records import parsed

PLOT_NAME = "loss.png"
Curve = tuple[list[int], list[float]]


def read_curves(metrics: Path) -> tuple[Curve, Curve]:
    """(steps, training losses) and (steps, validation losses) in a metrics.jsonl."""
    train: Curve = ([], [])
    valid: Curve = ([], [])
    for _, record in parsed(metrics):
        for key, (steps, losses) in (("loss", train), ("valid_loss", valid)):
            if isinstance(record.get(key), float):
                steps.append(record["step"])
                losses.append(record[key])
    return train, valid


def write_loss_plot(metrics: Path, target: Path) -> None:
    """A PNG of the losses over the steps; nothing is written where there is nothing to draw."""
    train, valid = read_curves(metrics)
    if not train[0]:
        return
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(*train, color="tab:blue", linewidth=1, label=f"training, last {train[1][-1]:.3f}")
    if valid[0]:
        axes.plot(*valid, color="tab:orange", marker="o", markersize=4, label=f"validation, last {valid[1][-1]:.3f}")
    axes.set(xlabel="step", ylabel="loss [nats per token]")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(target)
