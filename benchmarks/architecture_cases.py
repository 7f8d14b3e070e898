"""Which tiny models are tried: every architecture with either head and every vocabulary, or one of each."""

from __future__ import annotations

import dataclasses

from architecture_models import ARCHITECTURES, VOCABULARIES

# vLLM does not tie their heads (and no published model of these ties it).
UNTIED_ONLY = ("olmoe", "glm4_moe", "deepseek_v3", "gpt_oss")
# vLLM computes their attention on a CPU in bfloat16 only.
BFLOAT16_SAMPLERS = ("gpt_oss",)


@dataclasses.dataclass(frozen=True)
class Case:
    """One model: `qwen3_moe:tied:512`."""

    architecture: str
    tied: bool
    vocabulary: int

    @staticmethod
    def parse(text: str) -> Case:
        """From the form in which it is printed."""
        architecture, head, vocabulary = text.split(":")
        if architecture not in ARCHITECTURES or head not in ("tied", "untied"):
            raise ValueError(
                f"{text!r} is no case; write ARCHITECTURE:tied|untied:VOCABULARY, of {list(ARCHITECTURES)}."
            )
        return Case(architecture, head == "tied", int(vocabulary))

    def __str__(self) -> str:
        return f"{self.architecture}:{'tied' if self.tied else 'untied'}:{self.vocabulary}"

    @property
    def sampler_dtype(self) -> str:
        """float32 where vLLM can."""
        return "bfloat16" if self.architecture in BFLOAT16_SAMPLERS else "float32"

    @property
    def has_routers(self) -> bool:
        """Whether it is a mixture of experts."""
        return ARCHITECTURES[self.architecture][0]


def every_case() -> list[Case]:
    """The whole matrix."""
    return [Case(a, tied, v) for a in ARCHITECTURES for tied in (True, False) for v in VOCABULARIES]


def one_of_each() -> list[Case]:
    """A case for each architecture, in which dense and mixture-of-experts models have every head and vocabulary."""
    cases = []
    for routed in (True, False):
        names = [name for name, (has_routers, _) in ARCHITECTURES.items() if has_routers == routed]
        for number, name in enumerate(names):
            tied = number % 2 == 0 and name not in UNTIED_ONLY
            cases.append(Case(name, tied, VOCABULARIES[-1 - number % len(VOCABULARIES)]))
    return cases
