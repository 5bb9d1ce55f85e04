"""The main job on a model and samples in memory: its steps, as `repair` asks for them."""

import contextlib
from dataclasses import replace

import amp_rewrite
from amp_rewrite.options import Options
from amp_rewrite.tuning import repair


class OnSamples:
    """The steps for a model on samples, without a search; `asked` grows by the settings of each rewrite.

    `verdicts` change what is compared: each is called with a verdict and gives another one.
    """

    trusts_synthetic = False

    def __init__(self, model, sample, output=None, change=lambda verdict: verdict, *, repairs=True):
        self.repairs = repairs
        self.model, self.sample, self.output, self.change = model, sample, output, change
        self.asked = []

    def rewrite(self, settings):
        """The result of settings."""
        self.asked.append(settings)
        return amp_rewrite.rewrite(
            self.model,
            settings.options,
            output=self.output,
            observed=settings.seen,
            imprecise_outputs=settings.imprecise_outputs,
            replay=settings.plan,
        )

    def compare(self, result, *, fresh):
        """The verdict on the CPU."""
        del fresh
        return self.change(amp_rewrite.verify(self.model, result.model, self.sample, device="cpu"))

    def observe(self, before):
        """The ranges on the samples."""
        del before
        return amp_rewrite.observe(self.model, self.sample, device="cpu")

    def tune(self, outcome):
        """No search."""
        del outcome

    def half_flops(self, result):
        """The FLOPs in half."""
        counted = amp_rewrite.measure_coverage(result.model).flops
        return counted.half + counted.mixed

    def blame(self, outcome):
        """The outcome as it is."""
        return outcome

    @contextlib.contextmanager
    def elsewhere(self):
        """The same, as nothing is written."""
        yield self


def repaired(work, options=None):
    """The outcome of the main job."""
    return repair.repair(work, options or Options())


def synthetic(verdict):
    """The verdict as if its inputs were synthetic."""
    return replace(verdict, inputs=replace(verdict.inputs, seed=0))
