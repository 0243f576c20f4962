"""What goes wrong in the lab, said so that the reader knows what to do."""

from __future__ import annotations


class LabError(Exception):
    """A mistake in a file or on the command line, or something this machine does not have."""


class LabMissing(LabError):
    """This machine lacks something; `what` says what is missing and how to get it."""
