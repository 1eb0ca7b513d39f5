"""Passes of trainers around models of Hugging Face's transformers, measured on one device (needs transformers)."""
