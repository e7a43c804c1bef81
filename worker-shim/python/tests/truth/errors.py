"""The idioms for which the hub raises an error although torch gives numbers. All other idioms give the same numbers as
torch."""

ERRORS = {
    "optimizers.rmsprop": ("the hub has no RMSprop", "ctx.run(make=torch.optim.RMSprop"),
    "optimizers.of_the_scripts_own": ("the hub cannot run code of the script", "ctx.run(make=Signs"),
    "optimizers.sparse_gradients": ("the hub's keys are dense", ""),
    "rates.momentum_switched_off": ("the hub keeps other state without momentum", "two_groups"),
    "states.averages_set_to_zero": ("the state is the hub's: load_state_dict gives it another", "run.train"),
    "loops.uneven_inputs": ("a round has all workers", "ctx.join"),
    "precision.float64_parameters": ("the hub computes in float32", ""),
}
"""The reason for each idiom, and words of the line that the error must name."""

MOST = 8
"""The most idioms that may be in the table above."""

PROMISED = ("gradients", "scalers", "written_weights", "loaded_weights", "new_heads", "missing_gradients")
"""Topics whose idioms never end with an error."""
