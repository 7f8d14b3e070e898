"""A GRPO without engines, whose config's environment says what goes wrong: commands are tested in seconds."""

import os
import signal
import time
from pathlib import Path

from rlhf_algos.algorithms.base.reset import as_config
from rlhf_algos.algorithms.grpo import GRPO, GRPOConfig


class Toy(GRPO):
    """Reward 0.1 per iteration.

    `env_config` may hold `fail_at` (iteration that raises), `interrupt_at` (iteration that sends SIGINT to process
    `interrupt`, once per `marker` file) and `log` (file that gets a line per iteration).
    """

    @classmethod
    def get_default_config(cls):
        return GRPOConfig(algo_class=cls)

    def setup(self, config):
        self.config = as_config(self.get_default_config(), config)
        self._set_up_metrics()
        self.callbacks = []

    def reset_config(self, new_config):
        self.config = as_config(self.get_default_config(), new_config)
        return True

    def cleanup(self):
        pass

    def step(self):
        number, settings = self.iteration + 1, self.config.env_config
        if "log" in settings:
            with Path(settings["log"]).open("a") as log:
                log.write(f"{self.config.seed} {number} {os.getpid()}\n")
        if settings.get("fail_at") == number:
            raise ValueError(f"the environment broke in iteration {number}")
        if settings.get("interrupt_at") == number and not Path(settings["marker"]).exists():
            Path(settings["marker"]).touch()
            for _ in range(settings.get("interrupts", 1)):
                os.kill(settings["interrupt"], signal.SIGINT)
                time.sleep(0.2)
            if settings["interrupt"] != os.getpid():
                # Long enough for the driver to stop this trial.
                time.sleep(30)
        result = {
            "env_runners": {"episode_return_mean": number / 10},
            "learners": {"default_policy": {"train_rollout_logprob_abs_diff": 0.01, "tis_clipfrac": 0.25}},
        }
        interval = self.config.evaluation_interval
        if interval and number % interval == 0:
            result["evaluation"] = self.evaluate()
        return result

    def evaluate(self, parallel_train_future=None):
        return {"env_runners": {"episode_return_mean": 0.5, "greedy_return_mean": 0.75}}

    def save_pretrained(self, path):
        path.mkdir()
        (path / "config.json").write_text("{}")
        return path
