"""Privacy losses of output distributions, alone and in sums over clients, and their composition."""

from fl_privquant.privacy_loss.additive.gaussian import gaussian_delta, gaussian_epsilon, gaussian_separation
from fl_privquant.privacy_loss.closed_forms import NOT_PRIVATE, gaussian_loss, laplace_loss, response_loss
from fl_privquant.privacy_loss.composition.compose import Bound, Composition, NamedLoss, compose_epsilon
from fl_privquant.privacy_loss.composition.loss_distribution import PrivacyLoss
from fl_privquant.privacy_loss.composition.renyi import Part
from fl_privquant.privacy_loss.correlated_noise import LagNoise, RoundSchedule, find_correlation
from fl_privquant.privacy_loss.update_bounds import NO_NORMS, UpdateNorms, WholeUpdate

__all__ = [
    "NOT_PRIVATE",
    "NO_NORMS",
    "Bound",
    "Composition",
    "LagNoise",
    "NamedLoss",
    "Part",
    "PrivacyLoss",
    "RoundSchedule",
    "UpdateNorms",
    "WholeUpdate",
    "compose_epsilon",
    "find_correlation",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_loss",
    "gaussian_separation",
    "laplace_loss",
    "response_loss",
]
