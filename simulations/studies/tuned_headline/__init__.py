"""What privacy costs on MNIST, if every arm is tuned with the same budget on validation examples."""

from simulations.studies.tuned_headline.arms import PARTS

__all__ = ["PARTS"]
