"""The test of truth: idioms of people's training loops, with plain torch and with the hub, must give the same numbers.

A new idiom is a function in one of the files of `idioms`; docs/porting.md explains the table of outcomes.
`python -m truth`, run in the folder above this one, writes that table.
"""
