"""Fitted parameters and stacks: NAME.yaml in ``{parameters,engines,training,transfers,stacks}`` of calibration/."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from rlsim.files.lookup import YAML_SUFFIXES, as_path, catalogue, find_entry
from rlsim.files.records import dataclass
from rlsim.parameters.posterior import Posterior
from rlsim.schema.base import Strict
from rlsim.schema.engine_parameters import EngineParameters, TransferParameters, standing_for, version_order
from rlsim.schema.measured import MeasuredStack
from rlsim.schema.messages import read_record
from rlsim.schema.parameters import GlobalParameters, TrainingParameters
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
DEFAULT_TRANSFERS = "measured"
"""Fit to measured weight transfers."""


SETS = ("steps", "engines", "training", "transfers")


@dataclass(frozen=True)
class Fitted:
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


def load_parameters(name_or_path: str | None = None, base: Path | None = None) -> GlobalParameters:
    """Parameters called ``name_or_path`` (default: the fit to published steps), or from a file of that path.

    base: folder from which a relative path counts. Raises InputError naming what there is, or the key that is wrong.
    """
    return read_record(_found(name_or_path or DEFAULT, base, "parameters", "parameters"), GlobalParameters)


def load_engine_parameters(name_or_path: str | None = None, base: Path | None = None) -> EngineParameters:
    """Engine parameters, default the fit to measured iterations; arguments and errors as of :func:`load_parameters`."""
    return read_record(_found(name_or_path or DEFAULT_ENGINES, base, "engines", "engine parameters"), EngineParameters)


def load_training_parameters(name_or_path: str | None = None, base: Path | None = None) -> TrainingParameters:
    """Training parameters, default the fit to tuned recipes; arguments and errors as of :func:`load_parameters`."""
    found = _found(name_or_path or DEFAULT_TRAINING, base, "training", "training parameters")
    return read_record(found, TrainingParameters)


def load_stack(name_or_path: str, base: Path | None = None) -> Stack:
    """The software stack called ``name_or_path``, or from a file of that path; errors as of :func:`load_parameters`."""
    return read_record(_found(name_or_path, base, "stacks", "stack"), Stack)


def stack_of_release(framework: str, release: str | None) -> Stack | None:
    """The newest stack of ``framework`` that is not newer than ``release`` (the newest without one), by default the
    oldest; None for a framework without a stack."""
    known = [load_stack(name) for name in catalogue("calibration", "stacks")]
    own = [one for one in known if one.framework == framework]
    newest = max(own, key=lambda one: version_order(one.release or ""), default=None)
    return newest if release is None or newest is None else standing_for(release, own, lambda one: one.release or "")


def load_transfer_parameters(name_or_path: str | None = None, base: Path | None = None) -> TransferParameters:
    """Transfer parameters, default the fit to measured ones; arguments and errors as of :func:`load_parameters`."""
    found = _found(name_or_path or DEFAULT_TRANSFERS, base, "transfers", "transfer parameters")
    return read_record(found, TransferParameters)


def load_measured(path: str, base: Path | None = None) -> MeasuredStack:
    """A stack measured whole, from a file of that path; errors as of :func:`load_parameters`."""
    return read_record(_found(path, base, "measured", "measured stack"), MeasuredStack)


def _found(name: str, base: Path | None, folder: str, what: str) -> Path:
    """File of a set by path, or by name in a folder of calibration/."""
    otherwise = "; or give the path of a .yaml file"
    return as_path(name, YAML_SUFFIXES, base) or find_entry(name, catalogue("calibration", folder), what, otherwise)


@lru_cache(maxsize=1)
def _shipped() -> Fitted:
    """Read once: tables of rows ask for it again and again."""
    return shipped()


def own_sets(scenario: Scenario) -> Fitted:
    """The sets that ``scenario`` names, as every loaded one does, else those of rlsim; as their files hold them."""
    given = scenario.simulation
    return Fitted(
        given.parameters or _shipped().steps,
        given.engine_parameters or _shipped().engines,
        given.training_parameters or _shipped().training,
        given.transfer_parameters or _shipped().transfers,
    )


def set_digest(record: Strict) -> str:
    """Digest of a set's values (16 hex digits)."""
    return hashlib.sha256(record.model_dump_json().encode()).hexdigest()[:16]
