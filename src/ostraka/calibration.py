"""Where this machine's costs are kept: written by `ostraka bench calibrate`, read for "auto"."""

import os
from pathlib import Path

from ostraka.core.costs import Costs
from ostraka.errors import ConfigError


def user_cache() -> Path:
    """$OSTRAKA_CACHE, or a folder in the user's cache."""
    own = os.environ.get("OSTRAKA_CACHE")
    if own:
        return Path(own)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "ostraka"


def path() -> Path:
    return user_cache() / "costs.json"


def load() -> Costs:
    """This machine's costs, or the defaults where it was never calibrated."""
    try:
        return Costs.from_json(path().read_text())
    except FileNotFoundError:
        return Costs()
    except (OSError, ValueError) as bad:
        raise ConfigError(f"{path()}: {bad}; delete it, or run `ostraka bench calibrate`") from None


def save(costs: Costs) -> Path:
    """Keep the costs, replacing the file in one step."""
    target = path()
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(".new")
    temporary.write_text(costs.to_json() + "\n")
    temporary.replace(target)
    return target
