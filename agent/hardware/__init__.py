"""Detection, meters and measurements of this device."""
