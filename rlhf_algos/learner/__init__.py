"""The trainer: DeepSpeed ZeRO on a Hugging Face causal language model, as an RLlib Learner."""
