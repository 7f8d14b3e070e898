"""A GRPO without engines, whose environment's settings say what goes wrong: commands are tested in seconds."""

import os
import signal
import time
from pathlib import Path

from rlhf_algos.algorithms.grpo import GRPO, GRPOConfig
from rlhf_algos.algorithms.reset import as_config


class Toy(GRPO):
    """The reward grows by 0.1 x `scale` per iteration.

    `env_config` may hold

    * `scale`: of the reward;
    * `fail_at`: an iteration that raises, unless the file `repaired` exists;
    * `interrupt_at`: an iteration that sends SIGINT `interrupts` times (1) to the process `interrupt` (this one), once
      for all if a file `interrupted` is named;
    * `log`: a file that gets a line "scale iteration" per iteration.
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
        scale = settings.get("scale", 1.0)
        if "log" in settings:
            with Path(settings["log"]).open("a") as log:
                log.write(f"{scale} {number}\n")
        if settings.get("fail_at") == number and not Path(settings.get("repaired", "")).is_file():
            raise ValueError(f"the environment broke in iteration {number}")
        if settings.get("interrupt_at") == number:
            self._interrupt(settings)
        result = {
            "env_runners": {"episode_return_mean": scale * number / 10},
            "learners": {"default_policy": {"train_rollout_logprob_abs_diff": 0.01, "tis_clipfrac": 0.25}},
        }
        interval = self.config.evaluation_interval
        if interval and number % interval == 0:
            result["evaluation"] = self.evaluate()
        return result

    def _interrupt(self, settings):
        if "interrupted" in settings:
            if Path(settings["interrupted"]).exists():
                return
            Path(settings["interrupted"]).touch()
        process = settings.get("interrupt", os.getpid())
        for _ in range(settings.get("interrupts", 1)):
            os.kill(process, signal.SIGINT)
            time.sleep(0.1)
        if process != os.getpid():
            # Until the driver stops this trial.
            time.sleep(60)

    def evaluate(self, parallel_train_future=None):
        return {"env_runners": {"episode_return_mean": 0.5, "greedy_return_mean": 0.75, "held_out": 1.0}}

    def shown_responses(self):
        return []

    def save_pretrained(self, path):
        path.mkdir()
        (path / "config.json").write_text("{}")
        return path
