"""How clear an answer is decides how much it counts; what the network no longer tells apart is collapse."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sicl
from sicl.adapt import Method
from sicl.calibrate import Calibrated
from sicl.calibrate.sicl.information import (
    MEMORY,
    POWER,
    PRICE,
    AnswerName,
    Answers,
    Information,
    collapse,
    mean_count,
    pooled,
    within,
)
from sicl.calibrate.sicl.options import Who
from sicl.data import load_dataset
from sicl.engine.variants import count
from sicl.errors import InputError
from sicl.metrics import auroc
from sicl.streams import Benign, Stream


def _network() -> nn.Module:
    """A classifier that names the colour channel which stands out, from batch-normalised channel means."""
    head = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        head.weight.copy_(4 * torch.eye(3))
    convolution = nn.Conv2d(3, 3, 1, bias=False)
    with torch.no_grad():
        convolution.weight.copy_(torch.eye(3).view(3, 3, 1, 1))
    layers = [convolution, nn.BatchNorm2d(3), nn.Identity(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head]
    return nn.Sequential(*layers)


def _images(seed: int) -> Tensor:
    """Noise in which one colour is brighter, each colour as often."""
    images = torch.rand(33, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) * 0.5
    images[torch.arange(33), torch.arange(33) % 3] += 0.4
    return images


def _logits(classes: int, sharpness: float = 20.0, n: int = 64) -> Tensor:
    """Predictions of so many classes in turn, out of eight."""
    return sharpness * torch.nn.functional.one_hot(torch.arange(n) % classes, 8).float()


def _answers(said: dict[AnswerName, Tensor]) -> Answers:
    """What witnesses say, by their logits."""
    logits = torch.stack([*said.values()])
    return Answers.of([*said], count(logits, logits[0].argmax(dim=1)))


def _own(*logits: Tensor) -> Answers:
    """Several answers of the network."""
    return _answers({("network", str(number)): each for number, each in enumerate(logits)})


def _told(*logits: Tensor) -> list[float]:
    """How many classes each of several answers tells apart."""
    told: list[float] = Information().observe(_own(*logits)).information.exp().tolist()
    return told


def test_information_is_the_number_of_classes_told_apart() -> None:
    """Four if four are named surely; one for one class, for blurred predictions and for a single image."""
    four, *nothing = _told(_logits(4), _logits(1), torch.zeros(64, 8))
    assert four == pytest.approx(4.0, abs=1e-3)
    assert nothing == pytest.approx([1.0, 1.0], abs=1e-5)
    assert _told(_logits(4)[:1]) == pytest.approx([1.0], abs=1e-5)
    sharp, blurred = _told(_logits(8), _logits(8, sharpness=1.0))
    assert blurred < 0.3 * sharp


def test_clarity_is_certainty_less_the_price_of_the_variety_it_lacks() -> None:
    """By hand, of eight classes: the network names four; others four, two, eight, and none."""
    answers = _own(_logits(4), _logits(4), _logits(2), _logits(8), torch.zeros(64, 8))
    own, own_again, two, eight, none = Information().observe(answers).clarity.tolist()
    assert [own, own_again] == pytest.approx([1.0, 1.0], abs=1e-3)
    assert two == pytest.approx(1 - PRICE * (2 / 3) ** 2 * math.log(2), abs=1e-3)
    assert eight == pytest.approx(1 + PRICE * (2 / 3) ** 2 * math.log(3 / 2), abs=1e-3)
    assert none == pytest.approx(eight - 1, abs=1e-3)


def test_variety_is_no_merit_where_the_network_names_one_class() -> None:
    """The others that an answer strays to cost it doubt, and pay for next to none of it."""
    strays = _logits(4, sharpness=3.0)
    own, straying = Information().observe(_own(_logits(1), strays)).clarity.tolist()
    assert own == pytest.approx(1.0, abs=1e-2)
    assert straying < 0.9


@pytest.mark.parametrize("classes", [(1, 8), (6,), (4,)], ids=["two", "frogs", "deer"])
def test_a_stream_of_few_classes_is_not_distrusted(classes: tuple[int, ...]) -> None:
    """By the statistics of such batches a network strays to other classes; the confidence must not follow it."""
    data = load_dataset("demo")
    few = data.subset(np.flatnonzero(np.isin(data.labels, classes)))
    trusted = sicl.SICL().attach(sicl.load_model("demo"))
    batches = [(trusted(batch.images), batch.labels) for batch in Benign(corruption="clean", n=128).open(few)]
    right = torch.cat([out.labels == labels for out, labels in batches]).float()
    confidence = torch.cat([out.confidence for out, _ in batches])
    assert abs(float(confidence.mean() - right.mean())) < 0.1


def test_information_does_not_depend_on_how_the_stream_is_cut_into_batches() -> None:
    """The same samples one by one, in sixteens and at once."""
    logits = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    found = []
    for size in (1, 16, 64):
        information = Information()
        for part in logits.split(size):
            told = information.observe(_own(part))
        found.append(float(told.information))
    # A batch counts whole; within one nothing is older than the rest.
    assert found == pytest.approx([found[0]] * 3, abs=0.02)


def test_what_was_long_ago_is_forgotten() -> None:
    """An answer that turns to nonsense loses what it told, at the pace that `MEMORY` says."""
    information = Information()
    before = float(information.observe(_own(_logits(8))).information)
    rounds = math.ceil(3 / (1 - MEMORY) / 64)
    for _ in range(rounds):
        after = float(information.observe(_own(torch.zeros(64, 8))).information)
    assert before == pytest.approx(math.log(8), abs=1e-3)
    assert after < 0.2 * before


def test_answers_that_were_not_asked_before_start_all_anew() -> None:
    """A witness that joins is compared on the same images as the others."""
    information = Information()
    for _ in range(4):
        information.observe(_own(_logits(8)))
    joined = information.observe(
        _answers({("network", "softmax"): _logits(2), ("anchor", "mirror0"): _logits(4)})
    )
    assert joined.information.exp().tolist() == pytest.approx([2.0, 4.0], abs=1e-3)


def test_a_saved_state_tells_the_same() -> None:
    """Into a new one, and the next batch counts alike."""
    information, other = Information(), Information()
    own, anchor = ("network", "softmax"), ("anchor", "mirror0")
    information.observe(_answers({own: _logits(8), anchor: _logits(4)}))
    other.load_state_dict(information.state_dict())
    after = _answers({own: _logits(2), anchor: _logits(4)})
    told, same = information.observe(after), other.observe(after)
    assert torch.equal(told.variety, same.variety)
    assert torch.equal(told.doubt, same.doubt)


@pytest.mark.parametrize(
    "sums",
    [{"network a": torch.ones(3), "network b": torch.ones(4)}, {"nobody a": torch.ones(3)}],
    ids=["two lengths", "unknown witness"],
)
def test_a_foreign_state_is_one_sentence_and_changes_nothing(sums: dict[str, Tensor]) -> None:
    """Rows that cannot be compared, or whose they are is not known."""
    information = Information()
    information.observe(_own(_logits(4)))
    before = information.state_dict()
    with pytest.raises(InputError, match="`sums` of the state must"):
        information.load_state_dict({"sums": sums, "count": 1.0})
    assert information.state_dict()["sums"].keys() == before["sums"].keys()
    assert information.state_dict()["count"] == before["count"]


def test_collapse_is_the_share_of_the_anchors_classes_that_is_lost() -> None:
    """Only what both were asked counts; 0 where the network tells as many apart, or more."""
    softmax, mirror, anchors = ("network", "softmax"), ("network", "mirror0"), ("anchor", "mirror0")
    for said, lost in (
        ({softmax: _logits(8), mirror: _logits(2), anchors: _logits(8)}, 0.75),
        ({softmax: _logits(2), mirror: _logits(8), anchors: _logits(8)}, 0.0),
        ({mirror: _logits(8), anchors: _logits(2)}, 0.0),
    ):
        answers = _answers(said)
        assert float(collapse(answers, Information().observe(answers))) == pytest.approx(lost, abs=1e-3)


def test_a_question_that_destroys_the_images_loses_its_say() -> None:
    """Content noise of a hundred units leaves the network guessing: the confidence is that of the other answers."""
    members = ("softmax", "mirror", "content")
    model = sicl.load_model("demo")
    batch = next(iter(_stream()))
    asked, loud, without = (
        sicl.SICL(members=chosen, witnesses=("network",), content_scale=scale).attach(model)(batch.images)
        for chosen, scale in ((members, 0.1), (members, 100.0), (members[:2], 1.0))
    )
    assert float(loud.signals["content_invariance"].mean()) < 0.3
    assert float((loud.confidence - without.confidence).abs().max()) < 0.02
    assert float(asked.signals["content_invariance"].mean()) > 0.5


def test_repairs_are_believed_where_noise_has_led_the_network_astray() -> None:
    """On noisy pictures the softened one tells more classes apart, and the confidence follows it, without labels."""
    model = sicl.load_model("demo")
    spec = {"witnesses": ("network",), "variants": 2}
    repaired = sicl.SICL(**spec).attach(model)
    bare = sicl.SICL(members=("softmax", "mirror", "crop", "style"), **spec).attach(model)
    right, with_, without = [], [], []
    for batch in _stream("gaussian_noise", n=256):
        out = repaired(batch.images)
        right.append(out.labels == batch.labels)
        with_.append(out.confidence)
        without.append(bare(batch.images).confidence)
    ranked = [auroc(torch.cat(c), torch.cat(right)) for c in (with_, without)]
    assert float(ranked[0]) > float(ranked[1]) + 0.05


def _stream(corruption: str = "clean", n: int = 64) -> Stream:
    return Benign(corruption=corruption, n=n).open(load_dataset("demo"))


def _clarity(trusted: Calibrated) -> dict[str, float]:
    """How clear each answer is, by hand."""
    sums: Any = trusted.calibration.state_dict()["information"]
    means = {name: (row / sums["count"]).tolist() for name, row in sums["sums"].items()}
    variety = {name: -sum(p * math.log(p) for p in mean[:-1]) for name, mean in means.items()}
    own, doubt = next(iter(variety.values())), {name: mean[-1] for name, mean in means.items()}
    most = math.log(len(next(iter(means.values()))) - 1)
    price = PRICE * (own / most) ** 2
    return {n: 1 - doubt[n] / most - price * math.log(own / variety[n]) for n in means}


def _more(trusted: Calibrated) -> float:
    """How much clearer the anchor is than the network, where each gives one answer."""
    clarity = _clarity(trusted)
    assert [*clarity] == ["network mirror0", "anchor mirror0"]
    return clarity["anchor mirror0"] - clarity["network mirror0"]


def _unsure() -> nn.Module:
    """The same network, with less to say."""
    network = _network().eval()
    with torch.no_grad():
        network[-1].weight.div_(5)
    return network


@pytest.mark.parametrize("method", [sicl.Source(), sicl.Rotta()], ids=["source", "rotta"])
def test_statistics_that_blur_the_predictions_lose_say(method: Method) -> None:
    """A witness has the more say the clearer it is: by the root of `POWER`."""
    trusted = sicl.SICL(members=("mirror",)).attach(method.attach(_unsure()))
    for seed in range(3):
        signals = trusted(_images(seed)).signals
    more = _more(trusted)
    ratio = math.exp(POWER / 2 * more)
    assert float(signals["say_anchor"] / signals["say_network"]) == pytest.approx(ratio, rel=1e-3)
    assert more > 0.01


@pytest.mark.parametrize("sharper", [1.0, 3.0], ids=["as attached", "surer"])
def test_an_adapted_networks_sureness_is_not_held_against_the_anchor(sharper: float) -> None:
    """Adaptation trains it to be sure, right or wrong: both have half of the say, however much sharper it is."""
    adapted = sicl.Tent().attach(_unsure())
    trusted = sicl.SICL(members=("mirror",)).attach(adapted)
    with torch.no_grad():
        adapted.network[1].weight.mul_(sharper)
    for seed in range(3):
        signals = trusted(_images(seed)).signals
    assert (_more(trusted) < -0.05) is (sharper > 1)
    assert float(signals["collapse"]) < 0.01
    assert float(signals["say_anchor"]) == pytest.approx(0.5, abs=0.01)


def test_witnesses_of_several_answers_are_weighed_by_the_root_of_their_mean_count() -> None:
    """What a witness is clear about by one question counts, however many others it is not."""
    trusted = sicl.SICL(members=("mirror", "style"), variants=2).attach(_network().eval())
    for seed in range(3):
        signals = trusted(_images(seed)).signals
    counts: dict[str, list[float]] = {"network": [], "anchor": []}
    for name, clarity in _clarity(trusted).items():
        counts[name.split()[0]].append(math.exp(POWER * clarity))
    assert [len(each) for each in counts.values()] == [2, 2]
    ratio = math.sqrt(sum(counts["anchor"]) / sum(counts["network"]))
    assert float(signals["say_anchor"] / signals["say_network"]) == pytest.approx(ratio, rel=1e-3)


@pytest.mark.parametrize("method", [sicl.Source(), sicl.Tent()], ids=["source", "tent"])
def test_without_a_guard_all_witnesses_have_the_same_say(method: Method) -> None:
    """However much clearer one is than the other, and however far the network has collapsed."""
    adapted = method.attach(_network())
    trusted = sicl.SICL(relaxation="none").attach(adapted)
    with torch.no_grad():
        _collapse(adapted.network)
    for seed in range(3):
        signals = trusted(_images(seed)).signals
    assert float(signals["say_network"]) == pytest.approx(0.5)
    assert float(signals["say_anchor"]) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("adapts", "witnesses", "counts"),
    [
        (False, ("network", "anchor"), True),
        (True, ("network", "anchor"), False),
        (True, ("network",), True),
    ],
)
def test_what_a_network_trained_itself_to_say_does_not_count_where_an_anchor_can_be_asked(
    adapts: bool, witnesses: tuple[Who, ...], counts: bool
) -> None:
    """A step of TENT has just raised the softmax of these very images."""
    network = sicl.Tent().attach(_network()) if adapts else _network()
    trusted = sicl.SICL(witnesses=witnesses).attach(network)
    trusted(_images(0))
    asked = trusted.calibration.information.state_dict()["sums"]
    assert ("network softmax" in asked) is counts
    assert "network mirror0" in asked
    assert ("anchor mirror0" in asked) is ("anchor" in witnesses)


@pytest.mark.parametrize("method", [sicl.Source(), sicl.BatchNorm()], ids=["source", "batch statistics"])
def test_a_network_that_does_not_adapt_cannot_collapse(method: Method) -> None:
    """It tells fewer classes apart than its anchor, and loses no more say to it than clarity says."""
    adapted = method.attach(_network())
    trusted = sicl.SICL(members=("mirror",)).attach(adapted)
    with torch.no_grad():
        _collapse(adapted.network, mostly=0.5)
    for seed in range(3):
        signals = trusted(_images(seed)).signals
    own, anchors = trusted.calibration.state_dict()["information"]["sums"].values()
    assert float(torch.special.entr(own[:-1] / own[:-1].sum()).sum()) < 0.95 * math.log(3)
    assert float(torch.special.entr(anchors[:-1] / anchors[:-1].sum()).sum()) > 0.99 * math.log(3)
    assert float(signals["collapse"]) == 0.0
    ratio = math.exp(POWER / 2 * _more(trusted))
    assert float(signals["say_anchor"] / signals["say_network"]) == pytest.approx(ratio, rel=1e-3)


def test_an_anchor_that_is_no_witness_sees_a_collapse_all_the_same() -> None:
    """It is looked at from time to time; the say stays with the only one who is asked."""
    adapted = sicl.Tent().attach(_network())
    trusted = sicl.SICL(witnesses=("network",)).attach(adapted)
    seen = [float(trusted(_images(1)).signals["collapse"])]
    with torch.no_grad():
        _collapse(adapted.network)
    for seed in range(2, 30):
        signals = trusted(_images(seed)).signals
    seen.append(float(signals["collapse"]))
    assert seen[0] < 0.05
    assert seen[1] > 0.5
    assert float(signals["say_network"]) == 1.0


def _collapse(network: nn.Sequential, mostly: float = 1.0) -> None:
    """Make what the classifier sees constant, or so by a share."""
    network[1].weight.mul_(1 - mostly)
    network[1].bias.copy_(torch.tensor([5.0, 0, 0]) * mostly)


def test_a_collapsed_networks_say_goes_to_the_anchor() -> None:
    """Once the classifier's input is forced to be constant the anchor speaks, and is less sure than the softmax."""
    adapted = sicl.Tent().attach(_network())
    trusted = sicl.SICL().attach(adapted)
    trusted(_images(1))
    with torch.no_grad():
        _collapse(adapted.network)
    for seed in range(2, 30):
        out = trusted(_images(seed))
    assert len(out.labels.unique()) == 1
    assert float(out.signals["collapse"]) > 0.5
    assert float(out.signals["say_network"]) < 0.05
    assert float(out.signals["say_anchor"]) > 0.95
    said = torch.stack([out.signals[f"anchor_{name}"] for name in ("mirror", "crop", "repair", "style")])
    left = float(out.signals["say_network"])
    assert bool((out.confidence <= said.amax(dim=0) + left + 0.05).all())
    assert float(out.confidence.mean()) < float(out.signals["softmax"].mean())


def test_looking_at_the_attached_network_leaves_the_adapted_one_as_it_was() -> None:
    """Parameters and buffers are the same tensors with the same values afterwards."""
    adapted = sicl.Tent(predict="after").attach(_network())
    trusted = sicl.SICL().attach(adapted)
    trusted(_images(1))
    before = {name: value.clone() for name, value in adapted.network.state_dict().items()}
    plain = sicl.Tent(predict="after").attach(_network())
    plain(_images(1))
    for name, value in plain.network.state_dict().items():
        assert torch.equal(before[name], value), name


def _by(*whose: AnswerName, votes: list[float], errors: list[float] | None = None) -> Answers:
    """Answers about one sample, with these probabilities of its label."""
    column = torch.tensor(votes).unsqueeze(1)
    spread = torch.zeros_like(column) if errors is None else torch.tensor(errors).unsqueeze(1)
    return Answers(whose, column, spread, torch.zeros(len(votes), 9))


MIRROR, CROP, ANCHOR = ("network", "mirror0"), ("network", "crop0"), ("anchor", "mirror0")
ALONE = torch.tensor([[0.5, 0.5]])
"""Two answers of one witness."""
TWO = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
"""Two answers of one witness, one of another."""


def test_the_answers_of_one_witness_are_averaged() -> None:
    """Also where they are certain, as hard votes are."""
    answers = _by(MIRROR, CROP, votes=[1.0, 0.0], errors=[0.3, 0.4])
    confidence, error = pooled(answers, ALONE, torch.ones(1))
    assert float(confidence) == 0.5
    assert float(error) == pytest.approx(0.25)


def test_the_log_odds_of_witnesses_are_averaged() -> None:
    """Each witness's answers first, by their weights; then the witnesses, by theirs."""
    answers = _by(MIRROR, CROP, ANCHOR, votes=[0.9, 0.7, 0.2])
    confidence, _ = pooled(answers, TWO, torch.tensor([0.5, 0.5]))
    odds = (math.log(0.8 / 0.2) + math.log(0.2 / 0.8)) / 2
    assert float(confidence) == pytest.approx(1 / (1 + math.exp(-odds)), abs=1e-6)
    assert float(pooled(answers, TWO, torch.tensor([1.0, 0.0]))[0]) == pytest.approx(0.8, abs=1e-6)


def test_a_witness_that_finds_a_prediction_unlikely_is_not_outvoted() -> None:
    """Half sure and half not is less than the mean of both: nobody is sure without a reason."""
    confidence, _ = pooled(_by(MIRROR, ANCHOR, votes=[0.9, 0.01]), torch.eye(2), torch.tensor([0.5, 0.5]))
    assert float(confidence) < (0.9 + 0.01) / 2 - 0.1


def test_the_standard_error_of_pooled_answers_is_their_chance_spread() -> None:
    """It is what redrawn votes make of the confidence."""
    generator = torch.Generator().manual_seed(0)
    spreads, voices = torch.tensor([0.02, 0.03, 0.01]), torch.tensor([0.6, 0.4])
    drawn = torch.tensor([0.7, 0.6, 0.3]) + spreads * torch.randn(4096, 3, generator=generator)
    answers = Answers((MIRROR, CROP, ANCHOR), drawn.T, torch.zeros(3, 4096), torch.zeros(3, 9))
    one = _by(MIRROR, CROP, ANCHOR, votes=[0.7, 0.6, 0.3], errors=spreads.tolist())
    _, error = pooled(one, TWO, voices)
    assert float(error) == pytest.approx(float(pooled(answers, TWO, voices)[0].std()), rel=0.05)


def test_a_witness_without_a_voice_adds_nothing() -> None:
    """A network whose say is gone, to the last bit, leaves its anchor alone, and nothing is undefined."""
    answers = _by(MIRROR, ANCHOR, votes=[0.99, 0.3])
    voices = torch.tensor([POWER * math.log(1e-6), 0.0]).softmax(dim=0)
    assert float(pooled(answers, torch.eye(2), voices)[0]) == pytest.approx(0.3, abs=1e-6)


def test_answers_are_compared_with_those_of_the_same_witness() -> None:
    """The rows of weights are each witness's own, and its count is the mean of its answers', however many."""
    scores, owners = torch.tensor([1.0, 2.0, 5.0]), TWO > 0
    expected = torch.stack(
        [torch.tensor([1.0, 2.0, -torch.inf]).softmax(dim=0), torch.tensor([0.0, 0.0, 1.0])]
    )
    torch.testing.assert_close(within(scores, owners), expected)
    counts = torch.tensor([(math.e + math.e**2) / 2, math.e**5]).log()
    torch.testing.assert_close(mean_count(scores, owners), counts)
