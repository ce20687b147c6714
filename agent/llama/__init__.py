"""The only importer of llama_cpp."""
