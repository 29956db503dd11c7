"""Fine-tuning by LoRA: a transformer stays as it is, and only small added matrices are sent and counted."""
