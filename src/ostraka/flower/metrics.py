"""Metrics that nodes disclose: which of them fit together, and what each weighs.

No node decides that for the others: neither the first that replies nor one that replies oddly.
"""

import math
from collections import Counter
from collections.abc import Iterable
from typing import TypeAlias

from flwr.app import Message, MetricRecord, RecordDict

from ostraka.carried.relay import left_out
from ostraka.errors import MalformedMessage
from ostraka.flower.grid import LOG, require_content

_LONGEST = 1024  # numbers in one list

Form: TypeAlias = tuple[str, frozenset[tuple[str, int | None]]]


def alike(replies: Iterable[Message], weight: str, *, equal: bool) -> list[RecordDict]:
    """Return the metrics of the most common form, each with its weight under the key `weight`.

    equal: whether all weigh the same; otherwise each weighs what its node says. Nodes with another
    form are left out, and all nodes are if no form is the most common.
    """
    disclosed: dict[int, RecordDict] = {}
    for reply in replies:
        node = reply.metadata.src_node_id
        try:
            name, metrics = _read(reply)
            disclosed[node] = RecordDict({name: _weighted(metrics, weight, equal=equal)})
        except MalformedMessage as refused:
            left_out(LOG, node, str(refused))
    forms = {node: _form(each) for node, each in disclosed.items()}
    common = _most_common(forms)
    for node, form in forms.items():
        if common is not None and form != common:
            left_out(LOG, node, "its metrics do not have the most common form")
    return [disclosed[node] for node, form in forms.items() if form == common]


def _read(reply: Message) -> tuple[str, MetricRecord]:
    """Return the one record and its name. Raises MalformedMessage."""
    records = require_content(reply).metric_records
    if len(records) != 1:
        raise MalformedMessage(f"a reply has one record of metrics; got {len(records)}")
    ((name, metrics),) = records.items()
    for value in metrics.values():
        numbers = value if isinstance(value, list) else [value]
        if len(numbers) > _LONGEST:
            raise MalformedMessage(f"its metrics have more than {_LONGEST} numbers in a list")
        if not all(map(_is_finite, numbers)):
            raise MalformedMessage("its metrics are not finite")
    return name, metrics


def _weighted(metrics: MetricRecord, key: str, *, equal: bool) -> MetricRecord:
    if equal:
        return MetricRecord({**metrics, key: 1.0})
    claimed = metrics.get(key)
    if claimed is None or isinstance(claimed, list) or claimed <= 0:
        raise MalformedMessage(f"its metrics have no weight above zero as {key!r}")
    return metrics


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # An integer can be larger than any float.
        return False


def _form(disclosed: RecordDict) -> Form:
    """Return the record's name, its keys, and the length of each list; None for one number."""
    ((name, metrics),) = disclosed.metric_records.items()
    values = metrics.items()
    return name, frozenset((key, len(v) if isinstance(v, list) else None) for key, v in values)


def _most_common(forms: dict[int, Form]) -> Form | None:
    match Counter(forms.values()).most_common(2):
        case [(_, first), (_, second)] if first == second:
            LOG.warning(
                "metrics of %d nodes are dropped: two forms of them are equally common", len(forms)
            )
            return None
        case [(form, _), *_]:
            return form
    return None
