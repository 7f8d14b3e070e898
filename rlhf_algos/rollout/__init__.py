"""The sampler: vLLM engines as RLlib EnvRunners. The only place that imports vllm."""
