"""Are devices to be trusted with new requests? Pure judgement, the clock passed in.

`core` judges lanes (one model on one device) with what the other modules know: `bounds`
says how long silence is normal, `outliers` who fails or is slower than predicted, `brake`
when the fault is more likely ours.
"""
