"""How figures look, and how they are saved. Needs matplotlib; must not know what is drawn."""

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
    """As SVG, whose bytes depend on what is drawn alone, and as PNG; `path` has neither's ending."""
    figure.tight_layout()
    figure.savefig(f"{path}.svg", metadata={"Date": None})
    figure.savefig(f"{path}.png", dpi=dpi)
    plt.close(figure)
