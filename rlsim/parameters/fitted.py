"""The fitted values that a scenario is priced with: its sets, moved by the posterior of all measurements."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from rlsim.parameters.posterior import DEFAULT, Posterior, load_posterior
from rlsim.parameters.sets import Fitted, own_sets, set_digest, shipped
from rlsim.parameters.terms import moved
from rlsim.schema.scenario import Scenario


def fitted_of(scenario: Scenario) -> Fitted:
    """Fitted values of ``scenario``.

    Sets other than those that its posterior belongs to stay as they are; groups then keep their deviations only where
    all sets are those of the posterior.
    """
    posterior = load_posterior(scenario.simulation.posterior or DEFAULT)
    return with_posterior(own_sets(scenario), posterior)


def current() -> Fitted:
    """The fitted values of rlsim."""
    return with_posterior(shipped(), load_posterior(DEFAULT))


def with_posterior(sets: Fitted, posterior: Posterior | None) -> Fitted:
    """``sets`` moved by ``posterior``."""
    return replace(sets, posterior=None) if posterior is None else _moved(replace(sets, posterior=None), posterior)


@lru_cache(maxsize=16)
def _moved(sets: Fitted, posterior: Posterior) -> Fitted:
    known = {name: set_digest(one) == posterior.digests.get(name) for name, one in sets.sets.items()}
    # A term's name begins with that of its set.
    after = moved(sets, {name: z for name, z in posterior.shifts.items() if known.get(name.partition("/")[0])})
    return replace(after, posterior=posterior if all(known.values()) else None)
