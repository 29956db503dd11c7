from tests.flower.conftest import flower_log

__all__ = ["flower_log"]
