"""What would be saved of a run is not the run: saving and restoring are refused, and Tune's trials end without."""

import logging
from pathlib import Path

import pytest
from ray import tune
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from rlhf_algos.algorithms.grpo import GRPO, GRPOConfig
from rlhf_algos.algorithms.no_checkpoints import NOTE, CheckpointsNotSupported
from tests.commands.toy_algorithm import Toy


@pytest.mark.parametrize(
    "call",
    [
        lambda algo, path: algo.save(path),
        lambda algo, path: algo.save(),
        lambda algo, path: algo.save_checkpoint(path),
        lambda algo, path: algo.save_to_path(path),
        lambda algo, path: algo.get_state(),
        lambda algo, path: algo.set_state({}),
        lambda algo, path: algo.restore(path),
        lambda algo, path: algo.restore_from_path(path),
        lambda algo, path: algo.load_checkpoint(path),
        lambda algo, path: GRPO.from_checkpoint(path),
        lambda algo, path: GRPO.from_state({}),
    ],
)
def test_every_way_to_save_or_restore_is_refused(tmp_path, call):
    algorithm = object.__new__(GRPO)
    algorithm._storage = None
    with pytest.raises(CheckpointsNotSupported, match=r"a run can't be resumed yet.*algo\.save_pretrained\(path\)"):
        call(algorithm, str(tmp_path / "checkpoint"))
    assert list(tmp_path.iterdir()) == []


def tuner(tmp_path, config, *, run_config=None, **tune_options) -> tune.Tuner:
    return tune.Tuner(
        Toy,
        param_space=config.environment("rlhf_algos/Addition-v0").env_runners(num_cpus_per_env_runner=0.1),
        tune_config=tune.TuneConfig(**tune_options),
        run_config=tune.RunConfig(
            name="toy", storage_path=str(tmp_path), stop={"training_iteration": 3}, verbose=0, **(run_config or {})
        ),
    )


def toy_config() -> GRPOConfig:
    return Toy.get_default_config()


def test_trials_with_tunes_defaults_finish_without_a_checkpoint(ray_session, tmp_path):
    """Tune saves a class trainable at its end unless it is told otherwise."""
    config = toy_config().training(lr=tune.grid_search([1e-4, 2e-4]))
    results = tuner(tmp_path, config, reuse_actors=True, max_concurrent_trials=1).fit()
    assert results.errors == []
    assert [result.metrics["training_iteration"] for result in results] == [3, 3]
    assert [result.checkpoint for result in results] == [None, None]
    for result in results:
        note = Path(result.path, NOTE).read_text()
        assert "No checkpoint was written after iteration 3" in note and "save_pretrained" in note
    assert list(tmp_path.rglob("checkpoint_0*")) == []


def test_a_checkpoint_frequency_is_refused_by_name_before_anything_starts(ray_session, tmp_path):
    frequent = {"checkpoint_config": tune.CheckpointConfig(checkpoint_frequency=1)}
    with pytest.raises(Exception, match="checkpoint_frequency=1"):
        tuner(tmp_path, toy_config(), run_config=frequent).fit()
    assert list(tmp_path.rglob("result.json")) == []


def test_a_trial_that_was_to_be_saved_on_the_way_does_not_go_on(ray_session, tmp_path):
    """`tune.run` does not ask the class about frequencies."""
    analysis = tune.run(
        Toy,
        config=toy_config().environment("rlhf_algos/Addition-v0").env_runners(num_cpus_per_env_runner=0.1),
        storage_path=str(tmp_path),
        stop={"training_iteration": 3},
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=2),
        raise_on_failed_trial=False,
        verbose=0,
    )
    (trial,) = analysis.trials
    assert trial.last_result["training_iteration"] == 2
    assert "is to go on after a checkpoint, and there is none" in Path(trial.error_file).read_text()


class PauseOnce(FIFOScheduler):
    """Pauses each trial after its first iteration, as schedulers that compare trials do."""

    def __init__(self):
        super().__init__()
        self.paused = set()

    def on_trial_result(self, tune_controller, trial, result):
        if trial.trial_id in self.paused:
            return TrialScheduler.CONTINUE
        self.paused.add(trial.trial_id)
        return TrialScheduler.PAUSE


@pytest.mark.parametrize("reuse_actors", [False, True])
def test_a_paused_trial_does_not_start_over_in_silence(ray_session, tmp_path, reuse_actors):
    results = tuner(tmp_path, toy_config(), scheduler=PauseOnce(), reuse_actors=reuse_actors).fit()
    assert len(results.errors) == 1
    assert "is to go on after a checkpoint, and there is none" in str(results.errors[0])


def test_the_save_at_the_end_says_once_that_nothing_is_kept(tmp_path, caplog):
    from types import SimpleNamespace

    import pyarrow.fs

    algorithm = object.__new__(GRPO)
    algorithm._storage = SimpleNamespace(
        storage_filesystem=pyarrow.fs.LocalFileSystem(), trial_fs_path=str(tmp_path / "trial")
    )
    algorithm._trial_info, algorithm._iteration, algorithm._last_result = None, 7, {"reward": 1.0}
    with caplog.at_level(logging.WARNING):
        saved = algorithm.save()
    assert saved.checkpoint is None and saved.metrics == {"reward": 1.0}
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "Tune asked for a checkpoint after iteration 7"
    ]
