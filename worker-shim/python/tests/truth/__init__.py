"""The test of truth: idioms of real training loops must give the same numbers with the hub as with plain torch.

A new idiom is a function in one of the files of `idioms`; docs/porting.md explains the table of outcomes.
`python -m truth`, run in the folder above this one, writes that table.
"""
