"""Looking at registries through other libraries: queues and buckets of AWS, and the Hugging Face Hub."""
