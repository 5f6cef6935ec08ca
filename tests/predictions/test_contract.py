"""The contract: what batches show together, in one process or several, and what never counts."""

import io

import pytest
import torch
from torch import nn

from mmcalib.errors import UserError
from mmcalib.predictions.contract import Contract

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(18, 3, generator=GENERATOR)
LABELS = torch.arange(18) % 3
ONE_HOT = nn.functional.one_hot(LABELS, 3)
SUSPICIOUS = {
    'probabilities': (LOGITS.softmax(1), LABELS),
    'percentages': (100 * LOGITS.softmax(1), LABELS),
    'one-hot': (LOGITS, ONE_HOT),
    'sigmoid': (LOGITS.sigmoid(), (LOGITS > 0).long()),
}


def show(contract, scores, labels):
    """Let a contract see batches of three rows."""
    for score_rows, label_rows in zip(scores.split(3), labels.split(3), strict=True):
        contract.note(contract.read(score_rows, label_rows))


def message(function, *arguments):
    with pytest.raises(UserError) as raised:
        function(*arguments)
    return str(raised.value)


def as_saved(state):
    """Return a state as a checkpoint holds it that is loaded safely."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize('name', SUSPICIOUS)
def test_contract_two_processes_show_as_much_as_one(name):
    scores, labels = SUSPICIOUS[name]

    def show_all():
        contract = Contract()
        show(contract, scores, labels)
        contract.finish()

    expected = message(show_all)
    merged = Contract()
    for rows in (slice(9), slice(9, 18)):  # Each of nine rows is too few to tell at once.
        contract = Contract()
        show(contract, scores[rows], labels[rows])
        merged.merge(as_saved(contract.state_dict()))
    assert message(merged.finish) == expected
    assert merged.num_images == 18


@pytest.mark.parametrize('name', SUSPICIOUS)
def test_contract_one_other_batch_ends_a_suspicion(name):
    scores, labels = SUSPICIOUS[name]
    contract = Contract()
    show(contract, scores[:6], labels[:6])
    several_labels = labels.ndim == 2
    contract.note(
        contract.read(3 * LOGITS[:3], torch.ones(3, 3).long() if several_labels else LABELS[:3])
    )
    show(contract, scores[6:], labels[6:])
    contract.finish()


def test_contract_other_kind_of_another_process_raises():
    contract = Contract()
    contract.read(LOGITS, LABELS)
    other = Contract()
    other.read(LOGITS[:, :2], LABELS % 2)
    text = message(contract.merge, other.state_dict())
    assert text.startswith('some batches have 3 classes, and others 2 classes')
    contract.merge(Contract().state_dict())  # A process without images has no kind.


def test_contract_scores_that_do_not_count_have_any_value():
    labels = (LOGITS > 0).long()
    valid = torch.rand(18, 3, generator=GENERATOR) < 0.7
    probs = LOGITS.sigmoid().where(valid, torch.tensor(7.0))
    expected = Contract('probs').read(LOGITS.sigmoid(), labels, valid=valid)
    for options, given in (({}, labels), (dict(ignore_index=9), labels.masked_fill(~valid, 9))):
        mask = None if options else valid
        actual = Contract('probs', **options).read(probs, given, valid=mask)
        assert torch.equal(actual.labels, expected.labels)
        assert torch.equal(actual.probs[:, 0][valid], expected.probs[:, 0][valid])
