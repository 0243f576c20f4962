"""How the switch program is compiled, kept, and what is said where something for it is missing."""

from __future__ import annotations

import ctypes
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from netns.bpf import compile as compiler
from netns.bpf import libbpf
from netns.errors import LabError, LabMissing
from tests.netns.support_switch import require_programs

needs_clang = pytest.mark.skipif(shutil.which("clang") is None, reason="needs clang")


@pytest.fixture(autouse=True)
def _forgetful() -> Iterator[None]:
    """No compiled file and no library is remembered from before, nor left to others."""
    compiler.switch_object.cache_clear()
    libbpf.shared_library.cache_clear()
    yield
    compiler.switch_object.cache_clear()
    libbpf.shared_library.cache_clear()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which objects are kept in this test, whoever runs it; not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiler, "FILES", tmp_path / "mrc-lab")
    return tmp_path / "mrc-lab"


@needs_clang
def test_it_is_compiled_once_and_kept_whole_in_the_cache(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two labs at once leave one file, and nothing beside it; a third compiles nothing."""
    labs = [threading.Thread(target=compiler.switch_object.__wrapped__) for _ in range(2)]
    for lab in labs:
        lab.start()
    for lab in labs:
        lab.join()
    path = compiler.switch_object()
    assert list(cache.iterdir()) == [path]
    monkeypatch.setenv("PATH", str(tmp_path))
    compiler.switch_object.cache_clear()
    assert compiler.switch_object() == path


@needs_clang
@pytest.mark.usefixtures("cache")
def test_another_source_or_flag_gets_another_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is made of sources and flags, so an old object is never taken for a new one."""
    first = compiler.switch_object()
    monkeypatch.setattr(compiler, "FLAGS", (*compiler.FLAGS, "-DOTHER=1"))
    compiler.switch_object.cache_clear()
    assert compiler.switch_object() != first


@needs_clang
def test_a_cache_that_cannot_be_written_is_done_without(cache: Path) -> None:
    """It is compiled into a folder that lasts as long as the process."""
    cache.write_text("not a folder")
    path = compiler.switch_object()
    assert path.is_file()
    assert cache.parent not in path.parents


def test_an_object_that_others_could_have_written_is_not_loaded(cache: Path) -> None:
    """Whoever writes into that folder would write into root's kernel."""
    cache.mkdir()
    cache.chmod(0o777)
    with pytest.raises(LabError, match=r"is not a folder that only user .* writes"):
        compiler.switch_object()


def test_a_missing_compiler_is_named_with_its_package(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without clang the message says how to get it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabMissing, match="apt-get install clang"):
        compiler.switch_object()
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("header", "package"),
    [
        ("bpf/bpf_helpers.h", "libbpf-dev"),
        ("linux/bpf.h", "linux-libc-dev"),
        ("asm/types.h", "linux-libc-dev"),
    ],
)
def test_a_missing_header_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: str, package: str
) -> None:
    """What clang says about a header becomes the package that has it."""
    fake = tmp_path / "clang"
    fake.write_text(
        f"#!/bin/sh\necho \"x.c:1:10: fatal error: '{header}' file not found\" >&2\nfalse"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(LabMissing, match=rf"{header}.*apt-get install {package}"):
        compiler.compile_switch(tmp_path / "out.o")


@pytest.mark.parametrize(
    ("script", "complaint"),
    [("#!/bin/sh\nsleep 5", "after 0.1 s; try again"), ("#!/nowhere", "clang does not start: No")],
)
def test_a_compiler_that_is_stuck_or_broken_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, complaint: str
) -> None:
    """Without a traceback, and without a second try in another folder."""
    fake = tmp_path / "clang"
    fake.write_text(script)
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(compiler, "COMPILE_SECONDS_MAX", 0.1)
    with pytest.raises(LabError, match=complaint):
        compiler.compile_switch(tmp_path / "out.o")


@needs_clang
def test_a_source_that_does_not_compile_shows_what_clang_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first lines of the compiler's complaint are in the message."""
    source = tmp_path / "broken.c"
    source.write_text("int f(void) { return nonsense; }\n")
    monkeypatch.setattr(compiler, "SOURCE", source)
    with pytest.raises(LabError, match="nonsense"):
        compiler.compile_switch(tmp_path / "out.o")


def test_a_missing_libbpf_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library the message says how to get it."""

    def no_library(name: str, **_: object) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", no_library)
    with pytest.raises(LabMissing, match="apt-get install libbpf1"):
        libbpf.open_map(1)


@needs_clang
@pytest.mark.root
def test_a_rejected_program_shows_the_end_of_what_the_kernel_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verifier's reason is in the message, and nothing is left open."""
    require_programs()
    source = tmp_path / "rejected.c"
    source.write_text(
        "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\n"
        'SEC("tc") int bad(struct __sk_buff *skb) { return *(volatile int *)(long)skb->mark; }\n'
    )
    monkeypatch.setattr(compiler, "SOURCE", source)
    compiler.compile_switch(tmp_path / "out.o")
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(libbpf.BpfError, match="invalid mem access"):
        libbpf.load(tmp_path / "out.o", "bad", ())
    with pytest.raises(libbpf.BpfError, match="no program good"):
        libbpf.load(tmp_path / "out.o", "good", ())
    with pytest.raises(libbpf.BpfError, match="cannot open"):
        libbpf.load(source, "bad", ())
    assert len(list(Path("/proc/self/fd").iterdir())) == before
