"""Values in YAML files that depend on other keys of the run: ``${resolver:...}``, as OmegaConf calls them."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf


def _without_target(value: Any, *, _root_: DictConfig) -> Any:
    """``${without_target:1.0}`` in a YAML file: the value, or null where a target decides."""
    return None if OmegaConf.select(_root_, "privacy.epsilon") is not None else value


def _without_app(value: Any, *, _root_: DictConfig) -> Any:
    """``${without_app:30}`` in a YAML file: the value, or 0 where an app decides."""
    return 0 if OmegaConf.select(_root_, "app") is not None else value


def _for_mechanism(values: DictConfig, *, _root_: DictConfig) -> Any:
    """``${for_mechanism:{optm: 2, pbm: 4}}`` in a YAML file: the value for the run's mechanism, or null."""
    return values.get(OmegaConf.select(_root_, "mechanism.name"))


def register_resolvers() -> None:
    """Let YAML files use these values."""
    OmegaConf.register_new_resolver("without_target", _without_target, replace=True)
    OmegaConf.register_new_resolver("without_app", _without_app, replace=True)
    OmegaConf.register_new_resolver("for_mechanism", _for_mechanism, replace=True)
