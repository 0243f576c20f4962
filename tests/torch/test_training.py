"""Models trained with `mrc.torch` and with gloo."""

import pytest

from tests.torch import training
from tests.torch.job import Jobs

pytestmark = pytest.mark.slow


def test_training_ends_with_the_parameters_of_gloo(jobs: Jobs) -> None:
    """After 20 steps of a small model, whichever way it is spread over the ranks."""
    first, second = jobs.run("trained", 2)
    for form in training.FORMS:
        ours, theirs, again = first[form]
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6), form
        assert ours == again == second[form][0], f"{form}: not the same bits"
