"""What privacy costs on MNIST, if every arm is tuned with the same budget on validation examples."""
