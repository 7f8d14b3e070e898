"""Group-relative advantages (MATH 2; GRPO, https://arxiv.org/abs/2402.03300)."""

from typing import NamedTuple

import torch
from torch import Tensor

from rlhf_algos.objectives._checks import PRECISE_DTYPES, require_flat, require_same_shape


class _Groups(NamedTuple):
    """Statistics of each group, and the group of each sample."""

    ids: Tensor  # [N] int64, ascending
    of_sample: Tensor  # [B] int64, index into the other fields
    size: Tensor  # [N] int64
    is_constant: Tensor  # [N] bool, every reward of the group is the same number


def group_advantages(
    rewards: Tensor,
    group_ids: Tensor,
    *,
    normalize_std: bool = True,
    leave_one_out: bool = False,
    eps: float = 1e-6,
) -> Tensor:
    """How much better a response is than the others to the same prompt.

    With the mean and the population standard deviation over the group of `i`::

        A_i = (R_i - mean) / (std + eps)              normalize_std=True                          (2.1)
        A_i = R_i - mean                              normalize_std=False                         (2.2)
        A_i = R_i - mean of the others                normalize_std=False, leave_one_out=True     (2.3)

    A group is found by its id, never by position, so any order of the samples gives the same numbers. A group
    whose rewards are all equal gets exactly 0. The paper writes std without naming its form; it is the
    population form here.

    Args:
        rewards: `[B]` float32 or float64.
        group_ids: `[B]` int64, any values; equal ids are one group, also when the samples are not
            neighbours.
        normalize_std: divide by `std + eps`.
        leave_one_out: compare with the mean of the other members only. It is an unbiased baseline because it
            does not contain the sample itself; dividing by a std that does would undo that, so it is refused
            together with `normalize_std`.
        eps: added to the standard deviation; used only with `normalize_std`.

    Returns:
        `[B]`, dtype of `rewards`; computed in float64. Give rewards as float64: in float32, 16777216 and
        16777217 are one number before anything is computed.

    Gradient: none, the result is detached.

    Raises:
        TypeError: wrong dtype.
        ValueError: wrong rank or shape; a reward that is not finite (names the sample); a group of one sample
            (names the group); `normalize_std` with `leave_one_out`; `eps` negative or not finite; rewards
            so far apart that an advantage exceeds the dtype (names the group and its rewards).
    """
    _check_rewards(rewards, group_ids)
    if normalize_std and leave_one_out:
        raise ValueError(
            "leave_one_out=True needs normalize_std=False: the standard deviation contains the sample, "
            "which the leave-one-out baseline exists to avoid"
        )
    if not 0.0 <= eps < float("inf"):
        raise ValueError(f"eps must be finite and at least 0; got {eps}")
    groups = _find_groups(rewards, group_ids)
    _refuse_single_member(groups)

    # Scaled by a power of two, which loses no digit: the squares of large rewards stay finite.
    scale = _power_of_two_of_group(rewards.detach().double(), groups)
    values = rewards.detach().double() / scale[groups.of_sample]
    size = groups.size.double()
    centered = values - (_sum_by_group(values, groups) / size)[groups.of_sample]
    if normalize_std:
        std = (_sum_by_group(centered.square(), groups) / size).sqrt()
        centered = centered / (std + eps / scale)[groups.of_sample]
    else:
        centered = centered * scale[groups.of_sample]
    if leave_one_out:
        centered = centered * (size / (size - 1))[groups.of_sample]
    # The mean of equal numbers can be off by a rounding (0.1 three times), which 1 / std would blow up.
    advantages = torch.where(groups.is_constant[groups.of_sample], torch.zeros_like(centered), centered)
    advantages = advantages.to(rewards.dtype)
    _refuse_overflow(advantages, rewards, groups)
    return advantages


def zero_std_group_fraction(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """Fraction of groups whose rewards are all equal, which therefore teach nothing (MATH 2).

    Args:
        rewards: `[B]` float32 or float64.
        group_ids: `[B]` int64.

    Returns:
        Scalar float32. To combine it over batches, weight it by their numbers of groups.

    Gradient: none.

    Raises:
        TypeError: wrong dtype.
        ValueError: wrong rank or shape, a reward that is not finite, or no sample at all.
    """
    _check_rewards(rewards, group_ids)
    if rewards.numel() == 0:
        raise ValueError("zero_std_group_fraction needs at least one group; got 0 samples")
    return _find_groups(rewards, group_ids).is_constant.float().mean()


def _check_rewards(rewards: Tensor, group_ids: Tensor) -> None:
    require_flat("rewards", rewards, PRECISE_DTYPES)
    require_flat("group_ids", group_ids, (torch.int64,))
    require_same_shape(rewards=rewards, group_ids=group_ids)
    bad = (~torch.isfinite(rewards)).nonzero().flatten().tolist()
    if bad:
        found = ", ".join(f"sample {index}: {rewards[index].item()}" for index in bad[:5])
        raise ValueError(f"rewards must be finite; {len(bad)} are not ({found}); fix the reward function")


def _find_groups(rewards: Tensor, group_ids: Tensor) -> _Groups:
    ids, of_sample, size = torch.unique(group_ids, return_inverse=True, return_counts=True)
    values = rewards.detach()
    lowest = values.new_full(ids.shape, float("inf")).scatter_reduce(0, of_sample, values, "amin")
    highest = values.new_full(ids.shape, float("-inf")).scatter_reduce(0, of_sample, values, "amax")
    return _Groups(ids, of_sample, size, lowest == highest)


def _refuse_single_member(groups: _Groups) -> None:
    alone = groups.ids[groups.size == 1].tolist()
    if alone:
        raise ValueError(
            f"a group needs at least 2 samples to compare; group ids with a single one: {alone[:5]} "
            f"({len(alone)} in all); raise group_size, or keep the members of a group in one batch"
        )


def _power_of_two_of_group(values: Tensor, groups: _Groups) -> Tensor:
    """`[N]`, the largest power of two up to the largest magnitude in each group; 1 where all are 0."""
    largest = values.new_zeros(groups.ids.shape).scatter_reduce(0, groups.of_sample, values.abs(), "amax")
    mantissa, _ = torch.frexp(largest)
    return torch.where(largest > 0, largest / (2 * mantissa), torch.ones_like(largest))


def _refuse_overflow(advantages: Tensor, rewards: Tensor, groups: _Groups) -> None:
    bad = (~torch.isfinite(advantages)).nonzero().flatten()
    if len(bad):
        group = groups.of_sample[bad[0]]
        members = rewards[groups.of_sample == group].tolist()
        raise ValueError(
            f"the rewards of group {int(groups.ids[group])} lie further apart than {advantages.dtype} can hold: "
            f"{members[:8]}; scale the reward down"
        )


def _sum_by_group(values: Tensor, groups: _Groups) -> Tensor:
    return values.new_zeros(groups.ids.shape).index_add(0, groups.of_sample, values)
