"""What a channel is chosen by, what its two ends check, and a wrapper that makes the sampler worse."""

import pickle

import pytest
import torch

from rlhf_algos.weight_sync import (
    NO_INJECTION,
    Channel,
    InjectedChannel,
    MismatchInjection,
    SharedMemory,
    channel_maker,
    receive_into,
    send_from,
    with_injection,
)


class InThisProcess(Channel):
    """Keeps what it is given."""

    def __init__(self, size=1):
        self.size, self.kept, self.closed = size, {}, False

    def send(self, weights, version):
        self.kept[version] = dict(weights)

    def receive(self, version):
        return self.kept[version]

    def remove_older(self, version):
        self.kept = {number: weights for number, weights in self.kept.items() if number >= version}

    def close(self):
        self.closed = True


PATH = f"{__name__}.InThisProcess"


@pytest.mark.parametrize(
    "spec, size",
    [
        (InThisProcess, 1),
        (PATH, 1),
        ({"type": PATH, "size": 3}, 3),
        ({"type": InThisProcess, "size": 2}, 2),
    ],
)
def test_each_run_gets_a_channel_of_its_own(spec, size):
    make = channel_maker(spec)
    first, second = make(), make()
    assert type(first) is InThisProcess and first.size == size and first is not second


def test_a_short_name_and_its_option(tmp_path):
    channel = channel_maker({"type": "shared_memory", "parent": str(tmp_path)})()
    assert type(channel) is SharedMemory and channel.folder.parent == tmp_path
    channel.close()


def test_a_setting_makes_nothing(tmp_path):
    channel_maker({"type": "shared_memory", "parent": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "spec, error, message",
    [
        ("shared_memry", ValueError, r"weight_channel='shared_memry' is unknown.* Names: shared_memory"),
        ("no_such_package.Channel", ImportError, "can't be imported: No module named 'no_such_package'"),
        (f"{__name__}.Nothing", ImportError, "has no 'Nothing'"),
        ({"parent": "/tmp"}, ValueError, r'has no "type"'),
        ({"type": "shared_memory", "folder": "/tmp"}, ValueError, "SharedMemory has no option 'folder'.*: parent"),
        (dict, TypeError, r"not a subclass of rlhf_algos\.weight_sync\.Channel"),
        (7, TypeError, r"weight_channel=7 is of type int"),
        (InThisProcess(), TypeError, "is open already, and each run needs its own: give its class"),
        (None, TypeError, r"is of type NoneType. Give a name, a dotted path, a class, or \{"),
    ],
)
def test_what_makes_no_channel_is_refused(spec, error, message):
    with pytest.raises(error, match=message):
        channel_maker(spec)


class Learner:
    def __init__(self, rank):
        self.rank, self.asked = rank, 0

    def checkpoint_tensors(self):
        self.asked += 1
        return {"w": torch.arange(2.0)} if self.rank == 0 else {}


class Actor:
    def __init__(self):
        self.checkpoint_layout, self.loaded = {"w": (2,)}, None

    def load_weights(self, weights, version, *, injection):
        self.loaded = dict(weights), version, injection
        return version


def test_every_rank_gathers_and_the_first_one_sends():
    learners, channel = [Learner(0), Learner(1)], InThisProcess()
    for learner in learners:
        send_from(learner, channel, 3)
    assert [learner.asked for learner in learners] == [1, 1]
    assert channel.kept[3]["w"].tolist() == [0.0, 1.0]


def test_weights_of_another_checkpoint_do_not_touch_the_engine():
    channel, actor = InThisProcess(), Actor()
    channel.send({"v": torch.zeros(2)}, 0)
    with pytest.raises(ValueError, match="missing: w; unexpected: v"):
        receive_into(actor, channel, 0)
    assert actor.loaded is None


def test_an_actor_gets_the_weights_and_hears_what_was_done_to_them():
    channel, actor = InThisProcess(), Actor()
    send_from(Learner(0), channel, 2)
    assert receive_into(actor, channel, 2) == 2
    weights, version, injection = actor.loaded
    assert (weights["w"].tolist(), version, injection) == ([0.0, 1.0], 2, NO_INJECTION)


def test_the_wrapper_changes_what_is_received_and_nothing_else():
    channel, injection = InThisProcess(), MismatchInjection(weight_noise=0.1, lag=2)
    wrapped = with_injection(channel, injection, seed=3)
    assert isinstance(wrapped, InjectedChannel) and wrapped.injection == injection
    assert (channel.injection, channel.version_to_sample(5), wrapped.version_to_sample(5)) == (NO_INJECTION, 5, 3)
    send_from(Learner(0), wrapped, 1)
    assert channel.kept[1]["w"].tolist() == [0.0, 1.0]
    expected = dict(injection.apply(channel.kept[1].items(), seed=3))
    for received in (wrapped.receive(1), pickle.loads(pickle.dumps(wrapped)).receive(1)):
        assert torch.equal(received["w"], expected["w"]) and not torch.equal(received["w"], channel.kept[1]["w"])
    wrapped.remove_older(2)
    wrapped.close()
    assert channel.kept == {} and channel.closed


def test_a_lag_alone_changes_no_weight_and_nothing_is_wrapped_without_an_injection():
    channel = InThisProcess()
    channel.send({"w": torch.ones(2)}, 0)
    assert with_injection(channel, MismatchInjection(lag=1), seed=0).receive(0) is channel.kept[0]
    assert with_injection(channel, NO_INJECTION, seed=0) is channel
