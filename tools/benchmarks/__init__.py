"""Measurements behind `tools/bench`: what is measured, how it is compared, how it is told.

`table` lists the comparisons, which are in `*_rows` and are where new rows go; each row comes from
variants in `*_variants`, small functions that measure one thing once, mostly with two processes
that run a `*_worker`. `comparison` runs variants in turns and makes rows of what they return,
`child` keeps the processes they start, `report` prints.
"""
