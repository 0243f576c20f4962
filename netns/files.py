"""Reads YAML into a model and says what is wrong in words, with the place in the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from netns.errors import LabError

Model = TypeVar("Model", bound=BaseModel)


def read_yaml(path: Path, model: type[Model], changes: Mapping[str, Any] | None = None) -> Model:
    """Read a file.

    Args:
        path: the file.
        model: what it must hold.
        changes: values of the top level that replace those of the file; None leaves them.

    Raises:
        LabError: unreadable, no YAML, or not what the model asks for; every mistake has a line.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LabError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise LabError(f"{path} is no YAML: {error}") from error
    if not isinstance(data, dict):
        raise LabError(f"{path}: must hold keys and values, has {type(data).__name__}")
    data |= {key: value for key, value in (changes or {}).items() if value is not None}
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise LabError("\n".join([f"{path}:", *_in_words(error)])) from error


def _in_words(error: ValidationError) -> list[str]:
    lines = []
    for each in error.errors():
        place = ".".join(str(part) for part in each["loc"]) or "the file"
        message = each["msg"].removeprefix("Value error, ")
        value = "" if isinstance(each["input"], dict | list) else f" (has {each['input']!r})"
        lines.append(f"  {place}: {message}{value}")
    return lines
