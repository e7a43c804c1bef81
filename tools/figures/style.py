"""The look of figures, and their files. Must not depend on the contents of a figure."""

import matplotlib.pyplot as plt

plt.rcParams.update({
    "svg.fonttype": "none",
    "svg.hashsalt": "figures",
    "font.size": 8,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
})


def save(figure, path, dpi):
    """Saves SVG, with bytes that depend only on the drawing, and PNG; `path` has no ending."""
    figure.tight_layout()
    figure.savefig(f"{path}.svg", metadata={"Date": None})
    figure.savefig(f"{path}.png", dpi=dpi)
    plt.close(figure)
