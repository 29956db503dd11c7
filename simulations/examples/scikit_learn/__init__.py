"""A minimal scikit-learn app: logistic regression on handwritten digits."""
