"""Cloud backends behind the same contract."""
