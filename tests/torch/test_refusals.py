"""What `mrc.torch` refuses, and how it says so; and how little it takes hold of."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, HashStore, _make_nccl_premul_sum
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

import mrc
import mrc.torch
from mrc.collectives import Bootstrap, interfaces, join_blocking
from mrc.errors import ConfigError
from mrc.torch.tensors import Flat
from mrc.torch.worlds import WORLDS

# Some of the names are deprecated for others.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def quantized() -> torch.Tensor:
    """Return two ones of 8 bits."""
    return torch.quantize_per_tensor(torch.ones(2), 1, 0, torch.qint8)


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize(
    ("what", "text"),
    [
        (lambda: Flat([torch.ones(2, dtype=torch.complex64)]), "complex64.*view_as_real"),
        (lambda: dist.broadcast(torch.eye(3).to_sparse(), 0), r"sparse_coo.*\.to_dense\(\)"),
        (lambda: dist.broadcast(torch.ones(2, device="meta"), 0), r"on meta.*new_group.*\.cpu"),
        (lambda: dist.broadcast(quantized(), 0), r"quantized.*\.dequantize"),
        (lambda: dist.recv(torch.ones(1)), "any source.*needs src"),
        (
            lambda: dist.all_reduce(torch.ones(1, dtype=torch.float8_e5m2)),
            r"float8_e5m2 cannot be reduced.*\.to\(",
        ),
        (lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BXOR), "bit_xor of float32"),
        (
            lambda: dist.all_reduce(torch.ones(2), _make_nccl_premul_sum(2.0)),
            "PREMUL_SUM: backend mrc has SUM, PRODUCT, MIN, MAX, AVG",
        ),
        (lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool), dist.ReduceOp.AVG), "bools"),
        (
            lambda: dist.all_gather_into_tensor(torch.empty(2, dtype=torch.int32), torch.ones(2)),
            "all_gather_into_tensor: tensors of torch.float32 and torch.int32",
        ),
        (
            lambda: dist.reduce_scatter_tensor(torch.empty(2, dtype=torch.int32), torch.ones(2)),
            "reduce_scatter_tensor: tensors of torch.float32 and torch.int32",
        ),
        (
            lambda: dist.all_gather([torch.empty(2)], torch.ones(3)),
            r"all_gather: tensors of \[2\] elements where all have \[3\]; .*all_to_all",
        ),
        (lambda: dist.gather(torch.ones(3), [torch.empty(1)]), r"gather: tensors of \[1\]"),
        (lambda: dist.scatter(torch.ones(3), [torch.empty(1)]), r"scatter: tensors of \[1\]"),
        (
            lambda: dist.reduce_scatter(torch.ones(3), [torch.empty(1)]),
            r"reduce_scatter: tensors of \[1\]",
        ),
        (
            lambda: dist.all_to_all_single(torch.empty(2), torch.ones(2), [2], [1]),
            r"all_to_all_single: input splits \[1\] of 2 rows",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(what: Any, text: str) -> None:
    """The text says what it is, and what to do instead."""
    with pytest.raises((ConfigError, RuntimeError), match=text):
        what()
    # The group is as good as before.
    dist.barrier()


@pytest.mark.parametrize(
    ("seconds", "text"), [("soon", "'soon' is no number"), ("0.01", "detect_s = 0.01: must be")]
)
def test_a_detection_timeout_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, seconds: str, text: str
) -> None:
    """And another try may be better."""
    monkeypatch.setenv("MRC_DETECT_S", seconds)
    store = HashStore()
    with pytest.raises(ConfigError, match=text):
        dist.init_process_group("mrc", rank=0, world_size=1, store=store)
    monkeypatch.delenv("MRC_DETECT_S")
    dist.init_process_group("mrc", rank=0, world_size=1, store=store)
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_rank_that_does_not_come_is_named(kind: str, tmp_path: Path) -> None:
    """Whichever of torch's stores they would have met in."""
    store = HashStore() if kind == "memory" else FileStore(str(tmp_path / "store"), 2)
    with pytest.raises(mrc.MrcError, match=r"rank 1 said nothing.*within 0"):
        dist.init_process_group(
            "mrc", rank=0, world_size=2, store=store, timeout=timedelta(seconds=0.1)
        )


@pytest.mark.slow
def test_nobody_comes_in_without_the_token_of_this_start() -> None:
    """Such as a rank of another job, whose address for its rank 0 is out of date."""
    store, seen = HashStore(), []

    def come_in() -> None:
        store.set("mrc/host/1/1", interfaces.host_identity())
        store.wait(["mrc/url/1"], timedelta(seconds=10))
        (url,) = json.loads(store.get("mrc/url/1"))
        with pytest.raises(mrc.MrcError) as refused:
            join_blocking(Bootstrap(rank=1, size=2, url=mrc.Url.parse(url), timeout_s=0.5))
        seen.append(str(refused.value))

    options = SimpleNamespace(store=store, group_rank=0, group_size=2, group_id="0")
    options.global_ranks_in_group, options.timeout = [0, 1], timedelta(seconds=1.5)
    with ThreadPoolExecutor() as others:
        stranger = others.submit(come_in)
        with pytest.raises(mrc.MrcError, match="rank 1 did not come"):
            WORLDS.enter(options)
        stranger.result()
    assert "rank 0 belongs to another start of the job" in seen[0]


@pytest.mark.usefixtures("alone")
def test_a_group_says_which_devices_it_has() -> None:
    """Checkpoints ask: whole state dicts, and saving in the background."""
    group = dist.group.WORLD
    assert group is not None
    assert group._device_types == [torch.device("cpu")]  # noqa: SLF001 - as torch's own callers do
    with pytest.raises(RuntimeError, match="on the CPU, not on cuda"):
        group._get_backend(torch.device("cuda"))  # noqa: SLF001
    model = torch.nn.Linear(2, 2)
    whole: dict[str, Any] = {
        name: torch.zeros_like(value) for name, value in model.state_dict().items()
    }
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, whole, options=options)
    assert not any(value.any() for value in model.state_dict().values())


@pytest.mark.usefixtures("alone")
def test_memory_that_was_used_can_be_freed() -> None:
    """FSDP resizes its storage to nothing between two layers, and nothing else keeps it."""
    tensor = torch.ones(1000)
    before = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)  # noqa: SLF001
    dist.all_reduce(tensor)
    dist.barrier()
    assert torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) == before  # noqa: SLF001
    tensor.untyped_storage().resize_(0)
    assert tensor.untyped_storage().nbytes() == 0


@pytest.mark.usefixtures("alone")
def test_what_went_wrong_is_an_error_of_the_future_too() -> None:
    """For C++ as well, which takes an exception that is a value for the result."""
    work = dist.all_gather_into_tensor(torch.empty(3), torch.ones(2), async_op=True)
    assert work is not None
    with pytest.raises(RuntimeError, match="all_gather_into_tensor: all_gather: 12"):
        work.get_future().wait()
    with pytest.raises(RuntimeError, match="all_gather_into_tensor: all_gather: 12"):
        work.wait()
    assert work.is_completed()
    assert not work.is_success()


def test_the_rest_of_the_package_does_without_torch() -> None:
    """It is an extra, and takes seconds to import."""
    package = Path(mrc.__file__).parent
    files = [path.relative_to(package.parent) for path in package.rglob("*.py")]
    modules = sorted(
        ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        for path in files
        if "torch" not in path.parts and path.stem != "__main__"
    )
    assert "mrc.collectives.joined" in modules
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_the_name_of_the_backend() -> None:
    """`init_process_group` knows it as soon as the module is imported."""
    assert dist.Backend("mrc") == mrc.torch.BACKEND == "mrc"
