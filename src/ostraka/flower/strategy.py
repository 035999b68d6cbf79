"""The strategy, in the ServerApp. It is on the host's side, and so trusted with nothing.

It carries challenges, proofs, sealed updates and confirmations between the nodes and the enclave,
and gives Flower the model that the enclave has published.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import SystemRandom
from typing import TypeAlias

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from ostraka.carried.in_process import FoundingTerms, UnsafeInProcessEnclave
from ostraka.carried.relay import CarriedEnclave, Enough, Head, PublishedModel, Relay
from ostraka.carried.remote import RemoteEnclave
from ostraka.config import DEFAULT_MOMENTUM
from ostraka.core import rules, uploads
from ostraka.errors import ConfigError, LocalProtocolError, OstrakaError, printable
from ostraka.flower import metrics, records
from ostraka.flower.grid import LOG, Courier, read_replies
from ostraka.flower.options import UNSAFE_SIMULATION
from ostraka.flower.records import RECORD, message_record
from ostraka.messages import SIMULATION, Receipt

_POLL_S = 1.0
_WEIGHT = "num-examples"  # Flower's name for it
# A reply has at most a sealed update, of four bytes a value and what seals them, and metrics.
_PER_VALUE, _BESIDES = 8, 2**20

MetricsAggregation: TypeAlias = Callable[[list[RecordDict], str], MetricRecord]
Evaluation: TypeAlias = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass
class _Run:
    """The state of one call of `start`."""

    relay: Relay
    template: records.Template
    head: Head
    timeout: float
    courier: Courier

    @property
    def since(self) -> int:
        """How many rounds were published before this call."""
        return self.head.number


class PrivateRobust(FedAvg):
    """Runs a robust rule inside an enclave that every node has verified.

    It takes the arguments of Flower's FedAvg, and some more.

    enclave: HOST:PORT of `ostraka enclave run`, or UNSAFE_SIMULATION for one in this process.
    num_malicious_nodes: f. rule, pre, options: the aggregation rule, what comes before it, and what
    they take, such as `rule="FedTrimmedAvg", beta=0.2`; `ostraka rules` lists them. A remote
    enclave has f and the rule in its signed terms, with which these arguments must then agree; not
    given, they are what those say. In this process, not given, they are 0 and the usual rule.

    No update's weight is a node's own claim, such as an example count. Metrics that nodes disclose
    have equal weights, unless `weighted_by_key` names the claim to weigh them by. As many nodes as
    the rule needs are the minimum for training and the default number to wait for.

    An outcome is published when more than (n + f)/2 of the n enrolled nodes have confirmed it, so
    all connected nodes are asked for that, and not only those that have trained.

    straggler_grace: how many seconds the other nodes have once as many have replied as the rule
    needs; None to wait for all of them, up to the `timeout` of `start`. challenge_timeout: how many
    seconds nodes have to answer before they train; the grace shortens that too, once enough nodes
    have answered that took part before. outcome_timeout: how many seconds the enclave has to
    propose an outcome once it has all replies, nodes have to confirm it, and the enclave has to
    publish it then. tls_ca: certificates that vouch for the enclave's service. masking,
    client_momentum, upload, disclose_selection, disclose_values, report_metrics: terms of an
    enclave in this process.

    `receipts` are those of the rounds that this strategy has seen published.
    """

    def __init__(  # noqa: PLR0917 (in Flower's own order)
        self,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 0.0,
        min_train_nodes: int | None = None,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int | None = None,
        weighted_by_key: str | None = None,
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: MetricsAggregation | None = None,
        evaluate_metrics_aggr_fn: MetricsAggregation | None = None,
        *,
        enclave: str | CarriedEnclave,
        num_malicious_nodes: int | None = None,
        rule: str | None = None,
        pre: Sequence[str] | None = None,
        straggler_grace: float | None = None,
        challenge_timeout: float = 120.0,
        outcome_timeout: float = 900.0,
        tls_ca: str | Path | None = None,
        masking: str = "exact",
        client_momentum: float = DEFAULT_MOMENTUM,
        upload: str = uploads.DEFAULT,
        disclose_selection: bool = False,
        disclose_values: bool = False,
        report_metrics: Sequence[str] = (),
        **options: float | str | None,
    ) -> None:
        f = num_malicious_nodes or 0
        composition = _compose(rule or rules.DEFAULT, pre, options)
        least = composition.least(f)
        super().__init__(
            fraction_train=fraction_train,
            fraction_evaluate=fraction_evaluate,
            min_train_nodes=least if min_train_nodes is None else min_train_nodes,
            min_evaluate_nodes=min_evaluate_nodes,
            min_available_nodes=least if min_available_nodes is None else min_available_nodes,
            weighted_by_key=weighted_by_key or _WEIGHT,
            arrayrecord_key=arrayrecord_key,
            configrecord_key=configrecord_key,
            train_metrics_aggr_fn=train_metrics_aggr_fn,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn,
        )
        self.num_malicious_nodes = num_malicious_nodes
        self.composition = composition
        self.straggler_grace = straggler_grace
        self._names_rule = rule is not None or pre is not None or bool(options)
        self._equal_weights = weighted_by_key is None
        self.challenge_timeout = challenge_timeout
        self.outcome_timeout = outcome_timeout
        self.receipts: list[Receipt] = []
        self._run: _Run | None = None
        self._enclave: CarriedEnclave
        if enclave == UNSAFE_SIMULATION:
            terms = FoundingTerms(
                f,
                composition,
                client_momentum,
                masking=masking,
                upload=upload,
                disclose_selection=disclose_selection,
                disclose_values=disclose_values,
                report_metrics=tuple(report_metrics),
            )
            self._enclave = UnsafeInProcessEnclave(terms)
        elif isinstance(enclave, str):
            trusted = Path(tls_ca) if tls_ca else None
            self._enclave = RemoteEnclave(enclave, tls_ca=trusted, log=LOG)
        else:
            self._enclave = enclave

    def summary(self) -> None:
        """Log how the strategy is configured.

        FedAvg's summary would say that updates are weighted by a claim of the nodes.
        """
        weights = "equal" if self._equal_weights else f"as claimed under '{self.weighted_by_key}'"
        lines = (
            "├──> A robust rule inside an enclave:",
            f"│\t├── Rule: {self._running.head.composition}",
            f"│\t├── Number of malicious nodes: {self._running.head.f}",
            f"│\t└── Rounds published before: {self._running.head.number}",
            "├──> Weights:",
            "│\t├── Updates: by the rule",
            f"│\t└── Disclosed metrics: {weights}",
            "├──> Nodes:",
            f"│\t├── Fractions: train {self.fraction_train:g}, evaluate {self.fraction_evaluate:g}",
            f"│\t├── Least: train {self.min_train_nodes}, evaluate {self.min_evaluate_nodes}",
            f"│\t└── Waited for: {self.min_available_nodes}",
            "└──> Records:",
            f"\t├── Arrays: '{self.arrayrecord_key}'",
            f"\t└── Config: '{self.configrecord_key}'",
        )
        for line in lines:
            LOG.info("\t%s", line)

    def start(  # noqa: PLR0917 (in Flower's own order)
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluation | None = None,
    ) -> Result:
        """Run the federation up to round `num_rounds`, from where the enclave is.

        initial_arrays: the app's model. Once the enclave has a model, training goes on from that
        one. Results are under the numbers of the enclave's rounds.
        """
        courier = Courier(grid)
        run = self._begin(initial_arrays, timeout, courier)
        first = run.template.record(run.head.manifest, run.head.model)
        left = max(0, num_rounds - run.since)
        if run.since:
            LOG.info("going on after round %d: %d rounds are left", run.since, left)
        try:
            result = super().start(
                courier,
                first,
                left,
                timeout,
                train_config,
                evaluate_config,
                _shifted(evaluate_fn, run.since),
            )
        finally:
            self._enclave.close()
        return _numbered(result, run.since, first)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nodes for their challenges, and send each of them a proof and the model."""
        run, courier = self._running, _courier(grid)
        if self.fraction_train == 0 or run.relay.finished or run.relay.waiting:
            return []
        least = max(self.min_train_nodes, run.head.least)
        nodes = self._sample(courier, self.fraction_train, least)
        try:
            proofs = run.relay.open(
                courier,
                nodes,
                least=least,
                seconds=self.challenge_timeout,
                grace=self.straggler_grace,
            )
        except OstrakaError as failed:
            LOG.error("no round is open: %s", failed)
            return []
        finally:
            self._enclave.close()
        courier.enough = Enough(run.head.least, self.straggler_grace, run.relay.usable)
        settings = ConfigRecord({**config, "server-round": run.relay.number})
        return [
            self._message(node, arrays, settings, proof, MessageType.TRAIN)
            for node, proof in proofs.items()
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Hand sealed replies to the enclave, unread, and take the model that it publishes."""
        run = self._running
        try:
            published = run.relay.finish(
                run.courier,
                list(run.courier.get_node_ids()),
                read_replies(replies),
                least=run.head.least,
                seconds=self.outcome_timeout,
                greet_seconds=self.challenge_timeout,
            )
        except OstrakaError as failed:
            LOG.error("the round was not published: %s", failed)
            return None, None
        finally:
            self._enclave.close()
        return (None, None) if published is None else self._told(run, published)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Show nodes the receipt of the model: those that evaluate at all evaluate no other."""
        run, courier = self._running, _courier(grid)
        if self.fraction_evaluate == 0:
            return []
        # An error is no answer. At least one of those that count is honest.
        least = max(self.min_evaluate_nodes, run.head.least)
        courier.enough = Enough(least, self.straggler_grace, lambda *_: True)
        settings = ConfigRecord({**config, "server-round": run.since + server_round})
        made = []
        try:
            for node in self._sample(courier, self.fraction_evaluate, self.min_evaluate_nodes):
                links = run.relay.links(node)
                if links is not None:
                    made.append(self._message(node, arrays, settings, links, MessageType.EVALUATE))
        except OstrakaError as failed:
            LOG.error("no node evaluates: %s", failed)
        finally:
            self._enclave.close()
        return made

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average what nodes disclose. Nodes that disclose nothing usable are left out."""
        usable = metrics.alike(replies, self.weighted_by_key, equal=self._equal_weights)
        if not usable:
            return None
        try:
            return self.evaluate_metrics_aggr_fn(usable, self.weighted_by_key)
        except Exception as unfit:  # noqa: BLE001 (an app's function may raise anything)
            LOG.error("metrics of %d nodes are dropped: %r", len(usable), unfit)
            return None

    def _begin(self, initial: ArrayRecord, timeout: float, courier: Courier) -> _Run:
        """Ask where the enclave is. Raises ConfigError if the app does not fit it."""
        arrays = records.read_arrays(initial)
        manifest = records.manifest_of(arrays)
        template = records.Template(arrays)
        head = self._enclave.start(manifest, records.vector_of(arrays, manifest))
        if self.num_malicious_nodes not in (None, head.f):
            raise ConfigError(
                f"the federation's terms have f = {head.f}, and this strategy was given "
                f"num_malicious_nodes = {self.num_malicious_nodes}"
            )
        self._require_rule(head.composition)
        courier.largest = _PER_VALUE * manifest.dimension + _BESIDES
        self._run = _Run(Relay(self._enclave, LOG), template, head, timeout, courier)
        return self._run

    def _require_rule(self, signed: rules.Composition) -> None:
        """Raises ConfigError unless the terms have the rule that this strategy was given."""
        if self._names_rule and self.composition != signed:
            raise ConfigError(
                f"the federation's terms have the rule {signed}, and this strategy was given "
                f"{self.composition}"
            )

    @property
    def _running(self) -> _Run:
        if self._run is None:
            raise LocalProtocolError("rounds are run by `start`")
        return self._run

    def _sample(self, courier: Courier, fraction: float, least: int) -> list[int]:
        """Choose nodes to ask. Waits until enough are connected, or time is up."""
        wanted = max(self.min_available_nodes, least)
        seconds = self.challenge_timeout if self.receipts else self._running.timeout
        until = time.monotonic() + seconds
        told = False
        while len(nodes := list(courier.get_node_ids())) < wanted and time.monotonic() < until:
            if not told:
                LOG.info("waiting for nodes: %d of %d are connected", len(nodes), wanted)
                told = True
            time.sleep(_POLL_S)
        if len(nodes) < least:
            LOG.error("%d nodes are connected, and %d are needed", len(nodes), least)
            return []
        count = min(len(nodes), max(int(len(nodes) * fraction), least))
        return SystemRandom().sample(nodes, count)

    def _message(
        self, node: int, arrays: ArrayRecord, config: ConfigRecord, carried: bytes, kind: str
    ) -> Message:
        content = RecordDict(
            {
                self.arrayrecord_key: arrays,
                self.configrecord_key: config,
                RECORD: message_record(carried),
            }
        )
        return Message(content, node, kind, ttl=self._running.timeout)

    def _told(self, run: _Run, published: PublishedModel) -> tuple[ArrayRecord, MetricRecord]:
        """Log a published round, and return its model, its counts and its metrics for Flower."""
        receipt = published.receipt
        self.receipts.append(receipt)
        for each in receipt.rejected:
            LOG.warning("client %s was rejected by the enclave: %s", each.client, each.reason)
        if receipt.failure:
            LOG.warning(
                "round %d is a null step, and the model stays as it was: %s",
                receipt.number,
                receipt.failure,
            )
        names = printable(", ".join(run.relay.left_out(receipt)))
        LOG.info(
            "round %d is published: %d updates, %d left out%s, %d were kept%s%s",
            receipt.number,
            receipt.participants,
            receipt.participants - receipt.kept,
            f" ({names})" if names else "",
            receipt.kept,
            f" ({receipt.note})" if receipt.note else "",
            " (SIMULATED: no TEE protects this enclave)" if receipt.evidence == SIMULATION else "",
        )
        counts = MetricRecord(
            {
                "participants": receipt.participants,
                "kept": receipt.kept,
                "rejected": len(receipt.rejected),
            }
        )
        if receipt.metrics is not None:
            counts["reporting"] = receipt.metrics.clients
            counts.update(receipt.metrics.means)
        return run.template.record(run.head.manifest, published.model), counts


class PrivateMultiKrum(PrivateRobust):
    """Runs Multi-Krum, as Flower's MultiKrum does, inside an enclave that every node has verified.

    It takes the arguments of Flower's MultiKrum, and those of `PrivateRobust`.

    num_malicious_nodes: f. num_nodes_to_select: k, how many updates are averaged; None for all but
    f. A remote enclave has both, and the rule, in its signed terms, with which these arguments must
    then agree. All selected updates have the same weight. A round needs 2f + 3 nodes. Of an enclave
    in this process, nodes keep no momentum.
    """

    def __init__(  # noqa: PLR0917 (in Flower's own order)
        self,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 0.0,
        min_train_nodes: int | None = None,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int | None = None,
        num_malicious_nodes: int | None = None,
        num_nodes_to_select: int | None = None,
        weighted_by_key: str | None = None,
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: MetricsAggregation | None = None,
        evaluate_metrics_aggr_fn: MetricsAggregation | None = None,
        *,
        enclave: str | CarriedEnclave,
        straggler_grace: float | None = None,
        challenge_timeout: float = 120.0,
        outcome_timeout: float = 900.0,
        tls_ca: str | Path | None = None,
        masking: str = "exact",
        upload: str = uploads.DEFAULT,
        disclose_selection: bool = False,
        report_metrics: Sequence[str] = (),
    ) -> None:
        super().__init__(
            fraction_train,
            fraction_evaluate,
            min_train_nodes,
            min_evaluate_nodes,
            min_available_nodes,
            weighted_by_key,
            arrayrecord_key,
            configrecord_key,
            train_metrics_aggr_fn,
            evaluate_metrics_aggr_fn,
            enclave=enclave,
            num_malicious_nodes=num_malicious_nodes,
            rule=rules.PAPER,
            pre=(),
            straggler_grace=straggler_grace,
            challenge_timeout=challenge_timeout,
            outcome_timeout=outcome_timeout,
            tls_ca=tls_ca,
            masking=masking,
            client_momentum=0.0,
            upload=upload,
            disclose_selection=disclose_selection,
            report_metrics=report_metrics,
            k=num_nodes_to_select,
        )
        self.num_nodes_to_select = num_nodes_to_select

    def _require_rule(self, signed: rules.Composition) -> None:
        if signed.plain != rules.PAPER:
            raise ConfigError(
                f"the federation's terms have the rule {signed}, and this strategy is for "
                f"{rules.PAPER}: take PrivateRobust"
            )
        k = signed.options.k
        if self.num_nodes_to_select not in (None, k):
            raise ConfigError(
                f"the federation's terms have k = {k or 'all but f'}, and this strategy was given "
                f"num_nodes_to_select = {self.num_nodes_to_select}"
            )


def _compose(
    rule: str, pre: Sequence[str] | None, options: Mapping[str, float | str | None]
) -> rules.Composition:
    return rules.compose(rule, rules.asked_pre(rule, pre), rules.read_options(options))


def _courier(grid: Grid) -> Courier:
    if not isinstance(grid, Courier):
        raise LocalProtocolError("rounds are run by `start`")
    return grid


def _shifted(evaluate: Evaluation | None, since: int) -> Evaluation | None:
    """Return the same function for the numbers of the enclave's rounds."""
    if evaluate is None:
        return None
    return lambda server_round, arrays: evaluate(since + server_round, arrays)


def _numbered(result: Result, since: int, first: ArrayRecord) -> Result:
    """Number results as the enclave's rounds. If there was none, the model is the first one."""
    return Result(
        arrays=result.arrays or first,
        train_metrics_clientapp=_moved(result.train_metrics_clientapp, since),
        evaluate_metrics_clientapp=_moved(result.evaluate_metrics_clientapp, since),
        evaluate_metrics_serverapp=_moved(result.evaluate_metrics_serverapp, since),
    )


def _moved(metrics: dict[int, MetricRecord], since: int) -> dict[int, MetricRecord]:
    return {since + server_round: record for server_round, record in metrics.items()}
