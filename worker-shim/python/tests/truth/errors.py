"""Idioms that end with an error of the hub's, where torch gives numbers. All others give torch's numbers."""

ERRORS = {}
"""By idiom: the reason, and words of the line that the error must name."""

MOST = 10
"""So many idioms may be in the table above."""

PROMISED = ("gradients", "scalers", "written_weights", "loaded_weights", "new_heads", "missing_gradients")
"""Topics whose idioms never end with an error."""

assert len(ERRORS) <= MOST and not any(name.split(".")[0] in PROMISED for name in ERRORS)
