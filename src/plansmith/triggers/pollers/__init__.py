"""Registry pollers through other libraries: AWS queues and buckets, and the Hugging Face Hub."""
