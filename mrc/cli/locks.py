"""Locks and keys on the command line: the options of both commands, and what they come to.

A token is never the value of an option: everybody on the machine could read it in `ps`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

import mrc
from mrc.cli.failures import FileTrouble, file_trouble
from mrc.errors import ConfigError, LocalError

TOKEN_VARIABLE = "MRC_TOKEN"  # noqa: S105 - its name, not its value
TOKEN_FILE_BYTES_MAX = 8192

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class LockWishes:
    """What the user said about the lock.

    Attributes:
        insecure: there shall be none.
        token_file: where the token is, or None.
        identity: where a receiver keeps its key and certificate, or None.
    """

    insecure: bool
    token_file: str | None = None
    identity: str | None = None

    @property
    def secured(self) -> bool:
        """There is a lock."""
        return not self.insecure

    def warning(self, what_else: str) -> str:
        """Say in one line what it means to have no lock."""
        return (
            "--insecure: nothing is encrypted and nobody is asked who they are; anyone on the"
            f" network can read and alter what is sent, and {what_else}"
        )

    def lock(self, *, one_time: bool) -> mrc.Lock | None:
        """Make a receiver's lock, or none.

        Raises:
            ConfigError: the wishes contradict each other, or a file holds something else.
            FileTrouble: a file can be neither read nor made.
        """
        if self.insecure:
            self._check_insecure()
            return None
        token = self._token()
        if self.identity is None:
            return mrc.Lock.new(token, one_time=one_time)
        try:
            return mrc.Lock.load(self.identity, token, one_time=one_time)
        except LocalError as error:
            raise file_trouble(error, self.identity) from error

    def token_for(self, url: mrc.Url) -> str | None:
        """Find the token that a sender needs beside the receiver's URL, or nothing.

        Raises:
            ConfigError: the wishes contradict the URL, or it opens no lock.
            FileTrouble: the token cannot be read.
        """
        if self.insecure:
            self._check_insecure()
            if url.key is not None:
                raise ConfigError(
                    "the URL is for a receiver with a lock, and has the key to it: leave out"
                    " --insecure"
                )
            return None
        if url.key is None:
            raise ConfigError(
                "the URL has no fingerprint, so nobody can tell who answers there: paste the whole"
                " URL that mrc-recv printed, or pass --insecure on both sides if everybody on the"
                " network may read and alter what is sent"
            )
        if url.key.token and self.token_file is None:
            return None
        return self._token()

    def _check_insecure(self) -> None:
        if self.token_file is not None or self.identity is not None:
            raise ConfigError("--insecure is for no lock, --token-file and --identity are for one")

    def _token(self) -> str | None:
        """Return the token that was made known beforehand, or nothing."""
        if self.token_file is None:
            return os.environ.get(TOKEN_VARIABLE) or None
        try:
            with open(self.token_file, encoding="utf-8") as file:
                return file.read(TOKEN_FILE_BYTES_MAX).strip()
        except UnicodeDecodeError as error:
            raise ConfigError(f"{self.token_file}: a token is text") from error
        except OSError as error:
            raise FileTrouble(error.errno, error.strerror, self.token_file) from error


def lock_options(function: _F) -> _F:
    """Add the options about the lock that both sides have."""
    function = click.option(
        "--token-file",
        metavar="FILE",
        help="Read a token from FILE that both sides were given beforehand, 16 characters or more;"
        " the URL then carries none. Default: $MRC_TOKEN, or a token in the URL, which goes first.",
    )(function)
    return click.option(
        "--insecure",
        is_flag=True,
        help="No lock, on both sides: anyone on the network can read and alter what is sent."
        " Default: TLS 1.3, opened by the whole URL only.",
    )(function)
