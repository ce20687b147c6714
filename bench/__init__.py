"""Every figure that README or docs quote, reproducible by one command each."""
