import copy

import pytest
import torch
from mmengine.model import BaseModel
from mmengine.runner.checkpoint import _load_checkpoint_to_model, get_state_dict

from mmcalib.models import TextDataPreprocessor
from mmcalib.models.text_data_preprocessor import most_frequent, tokenize


def fitted(words=('the', 'cat', "don't"), **kwargs):
    preprocessor = TextDataPreprocessor(**{'num_words': 5, 'length': 4, **kwargs})
    preprocessor.set_words(words)
    return preprocessor


def ids(preprocessor, *texts):
    return preprocessor(dict(inputs=list(texts)))['inputs'].tolist()


def test_words_are_split_as_by_keras():
    assert tokenize("The CAT's (42) don't\tstop_now\n\n--ok") == [
        'the', "cat's", '42', "don't", 'stop', 'now', 'ok',
    ]  # fmt: skip
    assert tokenize('Ünïcode\r\n\xa0x') == ['ünïcode', 'x']
    assert tokenize('...') == []


def test_the_most_frequent_words_come_first():
    assert most_frequent(['b a c', 'a b', 'd a'], 3) == ['a', 'b', 'c']
    assert most_frequent([], 3) == []


def test_padding_in_front_the_last_known_words_kept():
    preprocessor = fitted()
    batch = preprocessor(dict(inputs=['A cat!', "the the cat don't cat", ''], data_samples=[7]))
    assert batch['inputs'].dtype == torch.int64 and batch['data_samples'] == [7]
    assert batch['inputs'].tolist() == [[0, 0, 0, 2], [1, 2, 3, 2], [0, 0, 0, 0]]
    assert ids(preprocessor, 'A cat!') == [[0, 0, 0, 2]]  # from the cache


def test_a_new_vocabulary_forgets_the_old_one():
    preprocessor = fitted()
    assert ids(preprocessor, 'the cat') == [[0, 0, 1, 2]]
    preprocessor.set_words(['cat'])
    assert ids(preprocessor, 'the cat') == [[0, 0, 0, 1]]


class Model(BaseModel):
    def __init__(self, preprocessor):
        super().__init__(data_preprocessor=preprocessor)

    def forward(self, inputs, data_samples=None, mode='tensor'):
        return inputs


def test_checkpoints_hold_the_vocabulary(tmp_path):
    torch.save(dict(state_dict=get_state_dict(Model(fitted(['né', 'cat'])))), tmp_path / 'a.pth')
    used = fitted()
    ids(used, 'the cat né')
    for new in (TextDataPreprocessor(num_words=5, length=4), used):
        checkpoint = torch.load(tmp_path / 'a.pth', weights_only=True)
        _load_checkpoint_to_model(Model(new), checkpoint, strict=True)
        assert new.words == ['né', 'cat']
        assert ids(new, 'the cat né') == [[0, 0, 2, 1]]
        assert ids(copy.deepcopy(new), 'cat') == [[0, 0, 0, 2]]


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match='the model has no vocabulary'):
        ids(TextDataPreprocessor(), 'the')
    with pytest.raises(TypeError, match=r'list of texts as inputs, got list.*PackText'):
        fitted()(dict(inputs=[torch.zeros(3)]))
    with pytest.raises(TypeError, match='got str'):
        fitted()(dict(inputs='the'))
    with pytest.raises(ValueError, match='1 to 5 words, got 6'):
        fitted(list('abcdef'))
    with pytest.raises(ValueError, match='1 to 5 words, got 0'):
        fitted([])
    with pytest.raises(ValueError, match='length must be an integer of at least 1, got 0'):
        TextDataPreprocessor(length=0)
    with pytest.raises(ValueError, match='texts cannot be mixed'):
        TextDataPreprocessor(batch_augments=dict(augments='Mixup'))
