"""Measurements behind `tools/bench`: what is measured, how it is compared, how it is told.

`table` says which rows there are and is where new ones go; each row comes from variants, small
functions that measure one thing once. `comparison` runs variants in turns and makes rows of what
they return, `child` keeps the processes they start, `report` prints.
"""
