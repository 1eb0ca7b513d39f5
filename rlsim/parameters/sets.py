"""Fitted parameters and stacks: NAME.yaml in ``{parameters,engines,training,transfers,stacks}`` of calibration/."""

import hashlib
import math
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from rlsim.files.lookup import YAML_SUFFIXES, as_path, catalogue, find_entry
from rlsim.parameters.posterior import Posterior
from rlsim.schema.base import Strict
from rlsim.schema.engine_parameters import EngineParameters, TransferParameters, standing_for, version_order
from rlsim.schema.messages import read_record
from rlsim.schema.parameters import GlobalParameters, MeasuredStack, TrainingParameters
from rlsim.schema.scenario import Scenario
from rlsim.schema.trainer import Stack

DEFAULT = "nemo_rl"
"""Fit to the published steps of NeMo-RL."""
DEFAULT_ENGINES = "serving"
"""Fit to measured iterations of serving engines."""
DEFAULT_TRAINING = "pretraining"
"""Fit to measured training steps of tuned recipes."""
DEFAULT_STACK = "nemo_rl-0.7"
"""Newest stack with measured RL steps."""
UNNAMED_STACK = "servers"
"""Stack of a scenario that names none and whose engines run as servers, as no measured recipe of the default has them.
"""
DEFAULT_TRANSFERS = "measured"
"""Fit to measured weight transfers."""


SETS = {
    "steps": "parameters", "engines": "engine_parameters", "training": "training_parameters",
    "transfers": "transfer_parameters",
}  # fmt: skip
"""Fitted sets by name, with the keys of a scenario's simulation that say which they are."""


class Fitted(Struct, frozen=True):
    """Every fitted set that a scenario rests on: to RL steps, engine iterations, training steps, transfers.

    posterior: what all measurements together say of them; the sets are then those that it has moved. None: the sets
    are as their files hold them, and no group deviates.
    """

    steps: GlobalParameters
    engines: EngineParameters
    training: TrainingParameters
    transfers: TransferParameters
    posterior: Posterior | None = None

    def factor(self, groups: Iterable[str]) -> float:
        """Factor on the time of what belongs to ``groups``: their mean deviations."""
        return 1.0 if self.posterior is None else math.exp(self.posterior.deviation(groups))

    @property
    def sets(self) -> dict[str, Strict]:
        """The four sets by name."""
        return {name: getattr(self, name) for name in SETS}


def shipped(training: TrainingParameters | None = None) -> Fitted:
    """The default of every set, but for ``training`` where it is given."""
    trained = training or load_training_parameters()
    return Fitted(load_parameters(), load_engine_parameters(), trained, load_transfer_parameters())


_KINDS: Mapping[type[Strict], tuple[str, str, str]] = {
    GlobalParameters: ("parameters", "parameters", DEFAULT),
    EngineParameters: ("engines", "engine parameters", DEFAULT_ENGINES),
    TrainingParameters: ("training", "training parameters", DEFAULT_TRAINING),
    TransferParameters: ("transfers", "transfer parameters", DEFAULT_TRANSFERS),
    Stack: ("stacks", "stack", DEFAULT_STACK),
    MeasuredStack: ("measured", "measured stack", ""),
}
"""By kind, its folder of calibration/, its name in messages, and the default."""
Kind = TypeVar("Kind", bound=Strict)


def load_set(kind: type[Kind], name_or_path: str | None = None, base: Path | None = None) -> Kind:
    """The fitted set or stack of a kind that is called ``name_or_path``, or from a file of that path; default: rlsim's.

    base: folder from which a relative path counts. Raises InputError naming what there is, or the key that is wrong.
    """
    folder, what, default = _KINDS[kind]
    name, otherwise = name_or_path or default, "; or give the path of a .yaml file"
    path = as_path(name, YAML_SUFFIXES, base) or find_entry(name, catalogue("calibration", folder), what, otherwise)
    return read_record(path, kind)


load_parameters = partial(load_set, GlobalParameters)
load_engine_parameters = partial(load_set, EngineParameters)
load_training_parameters = partial(load_set, TrainingParameters)
load_transfer_parameters = partial(load_set, TransferParameters)
load_stack = partial(load_set, Stack)
load_measured = partial(load_set, MeasuredStack)


def stack_of_release(framework: str, release: str | None) -> Stack | None:
    """The newest stack of ``framework`` that is not newer than ``release`` (the newest measured one without it), by
    default the oldest; None for a framework without a stack."""
    known = [load_stack(name) for name in catalogue("calibration", "stacks")]
    own = [one for one in known if one.framework == framework]
    newest = max((one for one in own if one.measured), key=lambda one: version_order(one.release or ""), default=None)
    # A release older than all stacks takes the oldest of them, as standing_for does everywhere.
    return newest if release is None or newest is None else standing_for(release, own, lambda one: one.release or "")


def own_sets(scenario: Scenario) -> Fitted:
    """The sets that ``scenario`` names, as every loaded one does, else those of rlsim; as their files hold them."""
    given = scenario.simulation
    return Fitted(**{name: getattr(given, key) or getattr(shipped(), name) for name, key in SETS.items()})


def set_digest(record: Strict) -> str:
    """Digest of a set's values (16 hex digits)."""
    return hashlib.sha256(record.model_dump_json().encode()).hexdigest()[:16]
