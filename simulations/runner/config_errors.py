"""What Hydra and OmegaConf refuse, as one line that names the key and the nearest valid word."""

from __future__ import annotations

from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from fl_privquant._validation import suggest_nearest
from fl_privquant.errors import MISSING, InvalidSpecError


def explain_refusal(error: BaseException) -> InvalidSpecError:
    """The refusal of a composed configuration, in our own words where the key is known.

    Parameters
    ----------
    error
        An exception of Hydra or OmegaConf.

    Returns
    -------
    InvalidSpecError
        With the key, what is wrong, and the nearest key or choice.
    """
    cause: BaseException | None = error
    while cause is not None:
        options = getattr(cause, "options", None)
        if options is not None:  # Hydra's MissingConfigException
            group, _, choice = str(getattr(cause, "missing_cfg_file", "")).rpartition("/")
            known = ", ".join(options)
            hint = suggest_nearest(choice, options)
            return InvalidSpecError(group, choice, f"is not one of {known}{hint}")
        if isinstance(cause, OmegaConfBaseException) and cause.full_key:
            problem = str(cause).splitlines()[0]
            if isinstance(cause, ConfigKeyError | ConfigAttributeError):
                node = cause.parent_node
                known_keys = list(map(str, node)) if OmegaConf.is_dict(node) and node else []
                problem = f"unknown key{suggest_nearest(str(cause.key), known_keys)}"
            return InvalidSpecError(str(cause.full_key), MISSING, problem)
        cause = cause.__cause__
    return InvalidSpecError("", MISSING, "; ".join(str(error).split("\n")))
