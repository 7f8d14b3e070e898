"""A corrector of your own: one frozen dataclass with a weight, checked.

    python examples/my_corrector.py

Expect "SmoothWindow keeps every promise" and a table in which ratio 1 has weight 1, ratio 2 has 1.225, and ratio 8 has
0.097. Training with it is then `.training(corrector={"type": "my_corrector.SmoothWindow", "width": 0.5})`, with this
file's folder on PYTHONPATH.
"""

from dataclasses import dataclass

import torch

from rlhf_algos.corrections import Corrector, check_corrector, correction_metrics


@dataclass(frozen=True)
class SmoothWindow(Corrector):
    """IcePop without an edge: `f(rho) = rho exp(-(log(rho) / width)^2 / 2)`, 1 at ratio 1 and fading both ways."""

    width: float = 0.7

    def weight(self, ratio: torch.Tensor) -> torch.Tensor:
        """Weigh each ratio by itself."""
        log_ratio = ratio.detach().log()
        return (log_ratio - (log_ratio / self.width).square() / 2).exp()


if __name__ == "__main__":
    corrector = SmoothWindow()
    check_corrector(corrector)
    print("SmoothWindow keeps every promise")
    ratios = torch.tensor([0.125, 0.5, 1.0, 2.0, 8.0])
    for ratio, weight in zip(ratios.tolist(), corrector.weight(ratios).tolist(), strict=True):
        print(f"ratio {ratio:5.3f}   weight {weight:5.3f}")
    one_response = corrector.correct(ratios.log(), torch.zeros(5, dtype=torch.int64), torch.ones(5, dtype=torch.bool))
    for name, values in correction_metrics(one_response).items():
        print(f"{name:17}   {values.mean():.3f}")
