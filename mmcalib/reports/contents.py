"""Descriptions of data in records, made comparable: the same data have one name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from mmcalib.runs.record import CONTENT, LOCATIONS, Record, described_data, digest


def unify_trainings(records: Sequence[Record]) -> None:
    """Give the training and the validation data of some records one name for one content."""
    by_split = defaultdict(list)
    for record in records:
        for member in record.model['members']:
            for split, data in described_data(member['training']).items():
                by_split[split].append(data)
    for descriptions in by_split.values():
        unify_data(descriptions)


def unify_data(descriptions: Sequence[dict]) -> None:
    """Give data of one content one name, and keep the content only where a name has several.

    So descriptions are equal where the data are, and are told apart where they are not. A
    description without a content, as those of 0.4 are, goes by its name: it has the content of the
    others of this name if they have one.

    Args:
        descriptions: Descriptions of data, which are changed.
    """
    contents = []
    contents_by_name = _contents_by_name(descriptions)
    for data in descriptions:
        known_contents = contents_by_name[_name(data)]
        contents.append(
            data.get(CONTENT, min(known_contents) if len(known_contents) == 1 else None)
        )
    locations_by_content: dict[str, dict] = {}
    for data, content in zip(descriptions, contents, strict=True):
        if content is not None:
            data[CONTENT] = content
            locations = dict(_locations(data))
            first = locations_by_content.setdefault(content, locations)
            if first.keys() == locations.keys():
                for path, (part, key, _) in locations.items():
                    part[key] = first[path][2]
    contents_by_name = _contents_by_name(descriptions)
    for data in descriptions:
        if len(contents_by_name[_name(data)]) < 2:
            data.pop(CONTENT, None)


def _contents_by_name(descriptions: Sequence[Mapping]) -> dict[str, set[str]]:
    """Return the contents of data that are described alike but for these."""
    contents = defaultdict(set)
    for data in descriptions:
        if CONTENT in data:
            contents[_name(data)].add(data[CONTENT])
    return contents


def _name(data: Mapping) -> str:
    """Return what a description says but for the content, as a digest."""
    return digest({key: value for key, value in data.items() if key != CONTENT})


def _locations(node: object, path: tuple = ()) -> Iterator[tuple[tuple, tuple[dict, str, object]]]:
    """Yield the path of each name of a place in a description, and its part, key and value."""
    items = node.items() if isinstance(node, dict) else ()
    items = enumerate(node) if isinstance(node, list) else items
    for key, value in items:
        if key in LOCATIONS:
            yield (*path, key), (node, key, value)
        else:
            yield from _locations(value, (*path, key))
