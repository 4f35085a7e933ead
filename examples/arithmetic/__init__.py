"""The parts of the arithmetic example that are plain functions of tensors: the task, the model, the GRPO formulas."""
